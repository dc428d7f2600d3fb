"""The proxy among local engines that behave, and that do not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_pd.command import parser
from plugins.pd.tests.local_engine import DONE, PARTS, LocalEngine
from plugins.pd.tests.proxy_process import COMPLETIONS, TIMEOUT_SECONDS, ProxyProcess, ProxyThread

STREAMED = b"".join([*PARTS, DONE])
TOGETHER = 30


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(stack: ExitStack, tmp_path: Path) -> Callable[..., ProxyProcess]:
    def starting(prefill: list[LocalEngine], decode: list[LocalEngine], *flags: str) -> ProxyProcess:
        first, second = ([engine.url for engine in engines] for engines in (prefill, decode))
        return stack.enter_context(ProxyThread(tmp_path, first, second, *flags))

    return starting


@pytest.fixture
def engines(stack: ExitStack) -> Callable[..., list[LocalEngine]]:
    return lambda *names: [stack.enter_context(LocalEngine(name)) for name in names]


Start = Callable[..., ProxyProcess]
Open = Callable[..., list[LocalEngine]]


@pytest.mark.parametrize("port", ["65536", "99999999", "-1", "http"])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    """A number of 16 bits more is another port."""
    with pytest.raises(ConfigError, match=f"--port: '{port}' is not a port"):
        parser().parse_all(["--decode", "http://127.0.0.1:1", f"--port={port}"])


def test_prefill_computes_one_token_and_decode_gets_what_it_hands_over(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    proxy = start([prefill], [decode])
    given = {"n": 1, "min_tokens": 3, "stream_options": {"include_usage": True}, "cache_salt": "s"}
    headers = {"Authorization": "Bearer secret", "Cookie": "c", "X-Forwarded-For": "1.2.3.4", "X-Request-Id": "mine"}
    body = {"model": "m", "prompt": "hello", "max_tokens": 4, **given}
    answered = proxy.ask("POST", COMPLETIONS, body, headers)
    assert (answered.status, answered.body["choices"]) == (200, [{"text": "from d"}])
    (first,), (second,) = prefill.completions, decode.completions
    assert (first.path, second.path) == (COMPLETIONS, COMPLETIONS)
    asked = first.body.pop("kv_transfer_params")
    assert first.body == {
        "model": "m", "prompt": "hello", "max_tokens": 1, "stream": False, "n": 1, "cache_salt": "s"
    }  # fmt: skip
    assert asked["do_remote_decode"] is True
    assert asked["do_remote_prefill"] is False
    assert asked["lmcache.handoff_id"]
    handed = second.body.pop("kv_transfer_params")
    assert second.body == body
    assert handed == {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "engine-p",
        "remote_request_id": "request-1", "remote_host": "10.9.8.7", "remote_port": 5600, "remote_num_tokens": 5,
        "remote_block_ids": [[1, 2]], "lmcache.handoff_id": asked["lmcache.handoff_id"],
    }  # fmt: skip
    for sent in (first, second):
        names = {name.lower() for name in sent.headers}
        assert sent.headers["authorization"] == "Bearer secret"
        assert not names & {"cookie", "x-forwarded-for"}
        assert sent.headers["x-request-id"] == asked["lmcache.handoff_id"], "two clients may choose one id"


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
def test_a_stream_comes_part_by_part(start: Start, engines: Open, path: str) -> None:
    prefill, decode = engines("p", "d")
    decode.faults = ["slow"]
    proxy = start([prefill], [decode])
    connection = proxy.connect()
    body = {"model": "m", "messages": [], "max_completion_tokens": 9, "stream": True}
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert answer.read(len(PARTS[0])) == PARTS[0]
    decode.go_on.set()
    assert answer.read() == STREAMED[len(PARTS[0]) :]
    connection.close()
    assert [each.path for each in (*prefill.completions, *decode.completions)] == [path, path]
    assert (prefill.asked[0].body["max_tokens"], prefill.asked[0].body["max_completion_tokens"]) == (1, 1)


def test_both_are_asked_at_once_with_one_id(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    prefill.faults = ["hang"]
    proxy = start([prefill], [decode], "--mode", "concurrent")
    assert proxy.complete().status == 200
    assert prefill.closed_on.wait(TIMEOUT_SECONDS), "what is left of prefill is cancelled behind the answer"
    asked, handed = (each.completions[0].body["kv_transfer_params"] for each in (prefill, decode))
    assert handed["do_remote_prefill"] is True
    assert handed["lmcache.handoff_id"] == asked["lmcache.handoff_id"]


def test_decode_gets_the_server_that_prefills_last_answer_named(
    start: Start, engines: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several servers on one machine have one address, and a proxy may know no coordinator."""
    prefill, decode = engines("p", "d")
    answer = prefill.answer

    def named(body: dict[str, Any]) -> dict[str, Any]:
        answered = answer(body)
        answered["kv_transfer_params"]["lmcache.handoff_server"] = "server-of-p"
        return answered

    monkeypatch.setattr(prefill, "answer", named)
    proxy = start([prefill], [decode], "--mode", "concurrent")

    def said() -> str:
        assert proxy.complete().status == 200
        server: str = decode.completions[-1].body["kv_transfer_params"]["lmcache.handoff_server"]
        return server

    assert said() == ""
    assert any(said() == "server-of-p" for _ in range(20)), "decode here does not wait for prefill's answer"


@pytest.mark.parametrize("mode", ["sequential", "concurrent"])
@pytest.mark.parametrize("fault", ["error", "cut", "no_answer", "garbage", "not_json", "cut_head"])
def test_a_prefill_that_fails_is_asked_elsewhere_once_and_then_decode_computes(
    start: Start, engines: Open, fault: str, mode: str
) -> None:
    first, second, decode = engines("p1", "p2", "d")
    proxy = start([first, second], [decode], "--mode", mode)
    first.faults = second.faults = [fault]
    assert proxy.complete().body["choices"] == [{"text": "from d"}]
    if mode == "sequential":
        assert decode.completions[0].body["kv_transfer_params"]["remote_host"] == "10.9.8.7"
        first.faults, second.faults = [fault], [fault]
        assert proxy.complete().body["choices"] == [{"text": "from d"}]
        assert "kv_transfer_params" not in decode.completions[1].body


def test_a_prefill_that_hangs_costs_its_timeout(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    prefill.faults = ["hang"]
    proxy = start([prefill], [decode], "--prefill-timeout", "0.3")
    assert proxy.complete().body["choices"] == [{"text": "from d"}]
    assert "kv_transfer_params" not in decode.completions[0].body
    assert prefill.closed_on.wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["error", "no_answer", "garbage", "cut_head", "hang"])
def test_a_decode_that_fails_before_its_first_byte_is_replaced_once(
    start: Start, engines: Open, fault: str, stream: bool
) -> None:
    prefill, first, second = engines("p", "d1", "d2")
    proxy = start([prefill], [first, second], "--silence-timeout", "0.5")
    faulty = [fault]
    first.faults = second.faults = faulty
    answered = proxy.complete(stream=stream)
    assert answered.status == 200
    assert answered.data == STREAMED if stream else answered.body["choices"][0]["text"].startswith("from d")
    asked = [*first.completions, *second.completions]
    params = [each.body.get("kv_transfer_params") for each in asked]
    assert sorted(bool(each) for each in params) == [False, True], "blocks are handed over once"
    first.faults, second.faults = [fault], [fault]
    answered = proxy.complete(stream=stream)
    assert (answered.status, answered.body["status"]) == (502, 502)
    assert "no decode engine answered" in answered.body["detail"]


def test_a_whole_answer_that_is_cut_off_is_asked_for_again(start: Start, engines: Open) -> None:
    (prefill, first, second) = engines("p", "d1", "d2")
    first.faults = second.faults = ["cut"]
    proxy = start([prefill], [first, second])
    assert proxy.complete().body["choices"][0]["text"].startswith("from d")


@pytest.mark.parametrize("fault", ["cut", "hang_inside"])
def test_a_stream_that_breaks_off_is_cut_off_and_never_begun_again(start: Start, engines: Open, fault: str) -> None:
    prefill, first, second = engines("p", "d1", "d2")
    first.faults = second.faults = [fault]
    proxy = start([prefill], [first, second], "--silence-timeout", "0.5")
    with pytest.raises(IncompleteRead) as cut:
        proxy.complete(stream=True)
    assert STREAMED.startswith(cut.value.partial)
    assert len(first.completions) + len(second.completions) == 1
    assert proxy.complete(stream=True).data == STREAMED, "and the proxy goes on"


def test_an_engine_that_answers_twice_is_believed_once(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    decode.faults = ["twice", "", "twice", ""]
    proxy = start([prefill], [decode])
    for _ in range(2):
        assert proxy.complete().body["choices"] == [{"text": "from d"}]
    for _ in range(2):
        assert proxy.complete(stream=True).data == STREAMED


def test_what_the_engines_refuse_is_answered_as_they_answer_it(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    prefill.faults, decode.faults = ["refuse"], ["refuse"]
    proxy = start([prefill], [decode])
    answered = proxy.complete(stream=True)
    assert (answered.status, answered.body) == (400, {"error": "too long"})
    health = proxy.ask("GET", "/health").body
    assert (health["prefill"][0]["failures"], health["decode"][0]["failures"]) == (0, 0)


def test_without_a_prefill_engine_decode_computes(start: Start, engines: Open) -> None:
    (decode,) = engines("d")
    proxy = start([], [decode])
    assert proxy.complete().body["choices"] == [{"text": "from d"}]
    assert "kv_transfer_params" not in decode.completions[0].body


@pytest.mark.parametrize("several", [{"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"prompt": ["a", "b"]}])
def test_what_has_several_prompts_or_answers_is_computed_by_decode(
    start: Start, engines: Open, several: dict[str, Any]
) -> None:
    prefill, decode = engines("p", "d")
    proxy = start([prefill], [decode])
    assert proxy.complete(**several).status == 200
    assert not prefill.completions
    assert proxy.complete(prompt=[1, 2, 3]).status == 200
    assert len(prefill.completions) == 1


def test_a_client_cannot_name_a_host(start: Start, engines: Open) -> None:
    prefill, decode = engines("p", "d")
    proxy = start([prefill], [decode])
    evil = {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 1, "remote_engine_id": "e",
            "prompt_token_ids": [1], "lmcache.handoff_id": "forged", "lmcache.max_offload_tokens": 7}  # fmt: skip
    assert proxy.complete(kv_transfer_params=evil).status == 200
    assert proxy.complete(kv_transfer_params=evil, n=2).status == 200
    sent = [each.body["kv_transfer_params"] for each in (*prefill.completions, *decode.completions)]
    assert all(each["lmcache.max_offload_tokens"] == 7 for each in sent)
    assert not any("evil" in str(each) or "forged" in str(each) or "prompt_token_ids" in each for each in sent)


class TestClients:
    @pytest.mark.parametrize("fault", ["hang", "hang_inside"])
    @pytest.mark.parametrize("role", ["prefill", "decode"])
    def test_one_that_leaves_ends_what_the_engines_do_for_it(
        self, start: Start, engines: Open, role: str, fault: str
    ) -> None:
        prefill, decode = engines("p", "d")
        waiting = prefill if role == "prefill" else decode
        waiting.faults = [fault]
        proxy = start([prefill], [decode])
        connection = proxy.connect()
        connection.request("POST", COMPLETIONS, json.dumps({"prompt": "x", "stream": True}))
        proxy.wait(lambda health: health[role][0]["in_flight"] == 1 and bool(waiting.completions))
        connection.close()
        assert waiting.closed_on.wait(TIMEOUT_SECONDS)
        health = proxy.wait(lambda health: not health[role][0]["in_flight"])
        assert health[role][0]["failures"] == 0
        if role == "prefill":
            assert not decode.completions

    def test_one_that_reads_nothing_stops_the_engine_and_no_other_client(self, start: Start, engines: Open) -> None:
        (decode,) = engines("d")
        proxy = start([], [decode])
        clients = [proxy.connect() for _ in range(3)]
        for client in clients:
            client.request("POST", COMPLETIONS, json.dumps({"prompt": "x", "stream": True}))
        assert proxy.complete(stream=True).data == STREAMED
        for client in clients:
            client.close()

    def test_many_at_once(self, start: Start, engines: Open) -> None:
        prefill, *decode = engines("p", "d1", "d2")
        proxy = start([prefill], decode)
        with ThreadPoolExecutor(TOGETHER) as pool:
            answered = list(pool.map(lambda _: proxy.complete(stream=True).data, range(4 * TOGETHER)))
        assert answered == [STREAMED] * (4 * TOGETHER)
        assert abs(len(decode[0].completions) - len(decode[1].completions)) < 2 * TOGETHER


class TestRefused:
    @pytest.fixture
    def decode(self, engines: Open) -> LocalEngine:
        (decode,) = engines("d")
        return decode

    @pytest.fixture
    def proxy(self, start: Start, decode: LocalEngine) -> Iterator[ProxyProcess]:
        proxy: ProxyProcess = start([], [decode])
        yield proxy
        assert not decode.completions, "nothing of it reached an engine"

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"", 400), (b"{", 400), (b"[" * 100_000, 400), (b'{"a": NaN}', 400), (b"[1]", 422), (b'"x"', 422),
            (b"\xff", 400),
        ],
    )  # fmt: skip
    def test_a_body_that_an_engine_could_not_read(self, proxy: ProxyProcess, body: bytes, status: int) -> None:
        assert proxy.ask("POST", COMPLETIONS, body).status == status

    def test_a_body_that_is_too_long_before_it_is_read(self, proxy: ProxyProcess) -> None:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_SECONDS) as sender:
            sender.sendall(_head("Content-Length: 17179869184"))
            assert sender.recv(4096).startswith(b"HTTP/1.1 413 ")

    def test_a_body_in_pieces_that_is_too_long(self, proxy: ProxyProcess) -> None:
        piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_SECONDS) as sender:
            sender.sendall(_head("Transfer-Encoding: chunked"))
            try:
                for _ in range(20):
                    sender.sendall(piece)
            except OSError:
                pass
            try:
                assert sender.recv(4096).startswith(b"HTTP/1.1 413 ")
            except ConnectionError:
                pass  # it was closed while we sent

    @pytest.mark.parametrize(
        "headers",
        [
            "Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: 2\r\nContent-Length: 40",
            "Content-Length: -2", "Transfer-Encoding: xchunked", "Content-Length: 2\r\n Transfer-Encoding: chunked",
            "Content-Length : 2", "Authorization: a\rX-Evil: b\r\nContent-Length: 2",
        ],
    )  # fmt: skip
    def test_a_second_request_inside_of_the_first(self, proxy: ProxyProcess, headers: str) -> None:
        planted = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n{"prompt": "evil"}'
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_SECONDS) as sender:
            sender.sendall(_head(headers) + b"0\r\n\r\n" + planted)
            answered = b""
            try:
                while part := sender.recv(4096):
                    answered += part
            except ConnectionError:
                pass
        assert answered.count(b"HTTP/1.1 ") <= 1
        assert not answered or answered.startswith(b"HTTP/1.1 4")

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Host": "evil.example"}, 421),
            ({"Origin": "null"}, 403),
        ],
    )
    def test_a_web_page(self, proxy: ProxyProcess, headers: dict[str, str], status: int) -> None:
        assert proxy.ask("POST", COMPLETIONS, {"prompt": "x"}, headers).status == status

    def test_other_paths_methods_and_queries(self, proxy: ProxyProcess) -> None:
        assert proxy.ask("POST", "/v1/completions/../../tokenize", {"prompt": "x"}).status == 404
        assert proxy.ask("GET", COMPLETIONS).status == 405
        assert proxy.ask("POST", f"{COMPLETIONS}?x=1", {"prompt": "x"}).status == 422


def _head(headers: str) -> bytes:
    return f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n".encode()


class TestHealth:
    def test_an_engine_that_is_down_is_not_chosen_until_it_is_up(self, start: Start, engines: Open) -> None:
        prefill, first, second = engines("p", "d1", "d2")
        first.is_healthy = prefill.is_healthy = False
        proxy = start([prefill], [first, second])
        proxy.wait(lambda health: not health["decode"][0]["is_up"] and not health["prefill"][0]["is_up"])
        for _ in range(3):
            assert proxy.complete().body["choices"] == [{"text": "from d2"}]
        assert not prefill.completions
        first.is_healthy = prefill.is_healthy = True
        proxy.wait(lambda health: health["decode"][0]["is_up"] and health["prefill"][0]["is_up"])
        assert {proxy.complete().body["choices"][0]["text"] for _ in range(2)} == {"from d1", "from d2"}
        assert len(prefill.completions) == 2

    def test_decode_is_not_sent_to_wait_for_an_engine_that_is_down(self, start: Start, engines: Open) -> None:
        prefill, decode = engines("p", "d")
        prefill.is_healthy = False
        proxy = start([prefill], [decode], "--mode", "concurrent")
        proxy.wait(lambda health: not health["prefill"][0]["is_up"])
        assert proxy.complete().status == 200
        assert "kv_transfer_params" not in decode.completions[0].body

    def test_without_a_decode_engine_it_is_unhealthy_and_answers_502(
        self, start: Start, engines: Open, stack: ExitStack
    ) -> None:
        prefill, decode = engines("p", "d")
        decode.server.shutdown()
        decode.server.server_close()
        proxy = start([prefill], [decode])
        assert proxy.complete().status == 502
        assert proxy.ask("GET", "/health").status == 503


class TestChoice:
    def test_decode_goes_to_the_engine_with_the_fewest_requests(self, start: Start, engines: Open) -> None:
        first, second = engines("d1", "d2")
        first.faults = second.faults = ["hang"]
        proxy = start([], [first, second])
        with closing(proxy.connect()) as waiting:
            waiting.request("POST", COMPLETIONS, b'{"prompt": "hello"}')
            health = proxy.wait(lambda health: sum(each["in_flight"] for each in health["decode"]) == 1)
            free = next(each["url"] for each in health["decode"] if not each["in_flight"])
            texts = {proxy.complete().body["choices"][0]["text"] for _ in range(4)}
            assert texts == {"from d1" if free == first.url else "from d2"}
