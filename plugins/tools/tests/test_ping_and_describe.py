"""`lmcache ping` and `lmcache describe`: engines and cache servers that answer, that do not, and that are something else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lmcache_client.layout import ObjectLayout
from lmcache_core import Severity
from lmcache_core.app.cli import main
from lmcache_tools.description import describe_server, description_page
from lmcache_tools.page import plain_page
from plugins.admin.tests.conversation import running
from plugins.admin.tests.stand_ins import active
from plugins.tools.tests.test_status_page import HEALTHY

Captured = pytest.CaptureFixture[str]
MODELS = {
    "object": "list",
    "data": [{"id": "llama", "max_model_len": 8192, "owned_by": "vllm", "root": "/models/llama"}],
}
LAYOUT = "bfloat16[2, 32, 256, 1024]"
OBJECT_BYTES = 2 * 32 * 256 * 1024 * 2 + 4096


@contextmanager
def engine(answers: dict[str, Any], seen: list[dict[str, str]] | None = None, key: str = "") -> Iterator[str]:
    """An HTTP server that answers these paths with JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.append(dict(self.headers))
            refused = key and self.headers.get("Authorization") != f"Bearer {key}"
            code = 401 if refused else 200 if self.path in answers else 404
            body = json.dumps(answers.get(self.path)).encode() if code == 200 else b""
            if isinstance(answers.get(self.path), str) and str(answers[self.path]).startswith("->"):
                code, body = 302, b""
            self.send_response(code)
            if code == 302:
                self.send_header("Location", str(answers[self.path]).removeprefix("->"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_engine_that_answers(capsys: Captured) -> None:
    with engine({"/health": None, "/v1/models": MODELS, "/version": {"version": "0.11"}}) as url:
        assert main(["ping", "engine", "--url", url, "--count", "3", "--json"]) == 0
        (ping,) = json.loads(capsys.readouterr().out)["pings"]
        assert (ping["what"], ping["healthy"], ping["answers"]) == ("engine", True, 3)
        assert 0 < ping["fastest_ms"] <= ping["median_ms"] <= ping["slowest_ms"]
        assert main(["describe", "engine", "--url", url]) == 0
        text = capsys.readouterr().out
        assert f"An inference engine at {url}, version 0.11." in text
        assert "llama  8192            /models/llama  vllm" in text


def test_an_engine_that_wants_a_key(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine({"/health": None}, key="sk-secret") as url:
        assert main(["ping", "engine", "--url", url]) == 1
        assert "answers 401 Unauthorized; set OPENAI_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        assert main(["ping", "engine", "--url", url]) == 0
        assert "sk-secret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("arguments", [["ping", "engine"], ["describe", "engine"]])
def test_an_engine_that_is_not_there(arguments: list[str], capsys: Captured) -> None:
    assert main([*arguments, "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr() == (
        "",
        (
            "lmcache: http://127.0.0.1:9 does not answer: [Errno 111] Connection refused; is the engine running? "
            "Name another one with --url\n"
        ),
    )


def test_an_address_of_an_engine_that_is_none(capsys: Captured) -> None:
    assert main(["ping", "engine", "--url", "http://[::1"]) == 2
    assert capsys.readouterr().err.startswith("lmcache: --url: expected the address of an engine")


def test_the_words_of_ping(capsys: Captured) -> None:
    assert main(["ping", "kvcach"]) == 2
    assert "no command is called 'ping kvcach'; did you mean 'ping kvcache'?" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "ask whether a cache server answers, and how fast; engine; kvcache" in capsys.readouterr().out


def test_a_cache_server_that_is_not_well(capsys: Captured) -> None:
    with running(conditions=lambda: active(Severity.CRITICAL, "it is down", "thread store"), status=dict) as server:
        assert main(["ping", "kvcache", "--url", server.http.endpoint, "--timeout-seconds", "1", "--port", "9"]) == 1
        said = capsys.readouterr()
        assert [line.split()[:4] for line in said.out.splitlines()[1:]] == [
            ["engine", "port", "tcp://localhost:9", "no"],
            ["admin", "API", server.http.endpoint, "not"],
        ]
        assert "thread store: it is down" in said.err
        assert "no answer to 'ping' from tcp://localhost:9 within 1 s" in said.err


def test_the_token_goes_nowhere_else(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setenv("LMCACHE_HTTP_TOKEN", "secret-word")
    with engine({"/status": {}}, seen) as other, engine({"/status": f"->{other}/status"}) as url:
        assert main(["status", "--url", url]) == 1
    said = capsys.readouterr()
    assert "answers 302 Found" in said.err
    assert seen == []
    assert "secret-word" not in said.out + said.err


def test_an_engines_key_goes_nowhere_else(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with engine({"/health": None}, seen) as other, engine({"/health": f"->{other}/health"}) as url:
        assert main(["ping", "engine", "--url", url]) == 1
    assert "answers 302 Found" in capsys.readouterr().err
    assert seen == []


@pytest.mark.parametrize("token", ["two words", "s\u00e4cret", "line\nbreak"])
def test_a_token_that_is_none_is_not_repeated(token: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_HTTP_TOKEN", token)
    assert main(["status", "--url", "http://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert error == "lmcache: LMCACHE_HTTP_TOKEN: expected one token: plain ASCII, without white space in it\n"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://user:hunter2@127.0.0.1:1", "--url: leave out what is before the @"),
        ("127.0.0.1:8080", "--url 127.0.0.1:8080: expected an address such as"),
        ("http://", "--url http://: expected an address such as"),
    ],
)
def test_addresses_that_are_none(url: str, says: str, capsys: Captured) -> None:
    assert main(["status", "--url", url]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "hunter2" not in error


def test_the_url_of_the_environment(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(status=lambda: HEALTHY) as server:
        monkeypatch.setenv("LMCACHE_URL", server.http.endpoint)
        assert main(["status", "-q"]) == 0
        assert main(["describe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["instance_id"] == "node-7"


def test_status_ends_with_what_the_server_says_of_itself(capsys: Captured) -> None:
    with running(status=lambda: {**HEALTHY, "healthy": False, "reason": "no disk"}) as server:
        assert main(["status", "--url", server.http.endpoint]) == 1
    assert capsys.readouterr().out.startswith("UNHEALTHY: no disk\n")


def test_watching(capsys: Captured) -> None:
    with running(status=lambda: HEALTHY) as server:
        assert main(["status", "--url", server.http.endpoint, "--watch", "0.1", "--times", "2", "--json"]) == 0
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [HEALTHY] * 2
        for flags, says in ((["--watch", "0"], "--watch 0: expected seconds"), (["--times", "2"], "--times: expected")):
            assert main(["status", "--url", server.http.endpoint, *flags]) == 2
            assert says in capsys.readouterr().err


def worker(shard: int, layout: str = LAYOUT, model: str = "llama") -> dict[str, Any]:
    return {"model_name": model, "layout": layout, "shard": shard}


def test_how_many_tokens_fit() -> None:
    status = {**HEALTHY, "workers": [worker(0), worker(1), worker(0)], "policies": {"eviction": "LRU"}}
    described = describe_server(status)
    (model,) = described["models"]
    assert (model["workers"], model["shards"], model["object_bytes"]) == (3, 2, OBJECT_BYTES)
    assert model["chunk_bytes"] == 2 * OBJECT_BYTES
    assert model["bytes_per_token"] == pytest.approx(2 * OBJECT_BYTES / 256)
    l1, fs = described["tiers"]
    assert l1["tokens"]["llama"]["capacity"] == 10 * 2**30 // (2 * OBJECT_BYTES) * 256
    assert fs["tokens"]["llama"] == {"used": 0, "capacity": None}
    assert described["stored_bytes_per_second"] == pytest.approx(600 * OBJECT_BYTES / 7500)
    assert l1["full_after_seconds"] == pytest.approx(10 * 2**30 / described["stored_bytes_per_second"])
    text = "\n".join(plain_page(description_page(described)))
    assert "keeps up to 10 GiB of them in memory (L1)" in text
    assert "L2: fs, asked in this order." in text
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize("blocks", [" in blocks of 32", " in blocks of 32 ordered 5f1c0a9b8d7e6f21"])
def test_a_layout_with_an_order_of_its_own_has_the_same_size(blocks: str) -> None:
    """As the server writes it."""
    plain, ordered = (
        describe_server({**HEALTHY, "workers": [worker(0, LAYOUT + end)]})["models"][0] for end in ("", blocks)
    )
    assert ordered["chunk_bytes"] == plain["chunk_bytes"] > 0
    assert str(ObjectLayout(2, 32, 256, 1024, "bfloat16", block_slots=32, order=blocks[25:])) == LAYOUT + blocks


@pytest.mark.parametrize("layout", ["", "odd", "int3[2, 3, 4]", "float16[2]", "float16[0, 0, 0]"])
def test_a_layout_that_is_not_known_is_not_an_error(layout: str) -> None:
    described = describe_server({**HEALTHY, "workers": [worker(0, layout)]})
    assert described["models"][0]["chunk_bytes"] is None
    assert list(plain_page(description_page(described)))


def test_an_empty_answer_can_be_described() -> None:
    assert list(plain_page(description_page(describe_server({}))))
