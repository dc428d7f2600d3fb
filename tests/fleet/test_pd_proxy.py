"""The proxy sends a prompt to the prefill engine whose server has most of it, as a real coordinator knows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from lmcache_core import HashChain, KeySpace
from lmcache_fleet.families import Family, chunk_hashes
from lmcache_fleet.messages import HASH_BYTES, JournalPage, Kind, Run, encode
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.pd.tests.local_engine import LocalEngine
from plugins.pd.tests.proxy_process import ProxyProcess

CHUNK = 16
TOKENS = list(range(1000, 1000 + 8 * CHUNK))
REQUESTS = 6


class Scene:
    """Two prefill engines with a server each, one decode engine, a coordinator and the proxy."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.coordinator = stack.enter_context(CoordinatorProcess(folder, "--instance-timeout", "3600"))
        self.first, self.second, self.decode = (stack.enter_context(LocalEngine(name)) for name in ("p1", "p2", "d"))
        for engine in (self.first, self.second):
            engine.tokens = TOKENS
            self._register(engine)
        self.proxy = stack.enter_context(
            ProxyProcess(
                folder, [self.first.url, self.second.url], [self.decode.url], "--coordinator-url", self.coordinator.url
            )
        )

    def has(self, engine: LocalEngine, chunks: int, salt: str = "") -> None:
        """Its server has this number of chunks of the prompt."""
        space = KeySpace("m##0123456789abcdef", 0x01000100, 0, salt, CHUNK, HashChain.BLAKE3, bytes(16))
        hashes = chunk_hashes(Family(CHUNK, HashChain.BLAKE3), TOKENS)[: chunks * HASH_BYTES]
        page = JournalPage(
            instance=engine.name, incarnation="1", source="l1", spaces=(space.tail,), first=0,
            runs=(Run(Kind.STORE, 0, 1000, hashes),),
        )  # fmt: skip
        assert self.coordinator.ask("POST", "/fleet/journal", encode(page)).status == 200

    def prefilled(self, **request: Any) -> list[int]:
        """How many of the requests each prefill engine got."""
        before = [len(engine.completions) for engine in (self.first, self.second)]
        for _ in range(REQUESTS):
            assert self.proxy.complete(**request).status == 200
        after = [len(engine.completions) for engine in (self.first, self.second)]
        return [later - earlier for later, earlier in zip(after, before, strict=True)]

    def _register(self, engine: LocalEngine) -> None:
        body = {
            "instance_id": engine.name, "ip": "10.0.0.7", "http_port": 80, "mq_port": 5555, "incarnation": "1",
            "metadata": {"engine_urls": [engine.url]},
        }  # fmt: skip
        assert self.coordinator.ask("POST", "/instances", body).status == 200


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_the_longest_prefix_decides_and_load_where_there_is_none(scene: Scene) -> None:
    assert scene.prefilled() == [REQUESTS / 2, REQUESTS / 2]
    scene.has(scene.second, 5)
    scene.has(scene.first, 2)
    assert scene.prefilled() == [0, REQUESTS]
    assert scene.prefilled(prompt=TOKENS) == [0, REQUESTS]
    assert scene.prefilled(prompt=TOKENS[1:]) == [REQUESTS / 2, REQUESTS / 2]
    assert scene.prefilled(cache_salt="other") == [REQUESTS / 2, REQUESTS / 2]


def test_decode_that_is_asked_at_once_gets_the_name_of_prefills_server(scene: Scene, tmp_path: Path) -> None:
    scene.has(scene.second, 5)
    flags = ("--coordinator-url", scene.coordinator.url, "--mode", "concurrent")
    with ProxyProcess(tmp_path, [scene.first.url, scene.second.url], [scene.decode.url], *flags) as proxy:
        assert proxy.complete().status == 200
        assert scene.decode.completions[-1].body["kv_transfer_params"]["lmcache.handoff_server"] == scene.second.name
        scene.coordinator.kill()
        assert proxy.complete().status == 200
    unknown = [scene.decode.url]  # an engine that no server names
    with ProxyProcess(tmp_path, unknown, [scene.decode.url], *flags) as proxy:
        assert proxy.complete().status == 200
        params = [each.body["kv_transfer_params"] for each in scene.decode.completions]
        assert params[-1].get("lmcache.handoff_server", "") == params[-2].get("lmcache.handoff_server", "") == ""


def urls(found: Any) -> tuple[set[str], set[str]]:
    return {each["url"] for each in found["prefill"]}, {each["url"] for each in found["decode"]}


def test_engines_with_a_role_are_learned_from_the_coordinator(tmp_path: Path) -> None:
    """As their connectors say, until they end, and while the coordinator is away."""
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(tmp_path))
        first, second = (stack.enter_context(LocalEngine(name)) for name in ("p", "d"))
        server = stack.enter_context(
            ServerProcess(
                [
                    "--l1-size-gb",
                    "0.0625",
                    "--coordinator-url",
                    coordinator.url,
                    "--coordinator-heartbeat-interval",
                    "0.2",
                ],
                tmp_path / "server.log",
            )
        )
        proxy = stack.enter_context(ProxyProcess(tmp_path, [], [], "--coordinator-url", coordinator.url))
        assert proxy.complete().status == 502
        place = {"lmcache.port": server.port, "lmcache.heartbeat_seconds": 0.2}
        prefill = ServerLink(Settings.of({**place, "lmcache.pd_role": "producer", "lmcache.engine_url": first.url}))
        stack.callback(prefill.close)
        decode = ServerLink(Settings.of({**place, "lmcache.pd_role": "receiver", "lmcache.engine_url": second.url}))
        stack.callback(decode.close)
        proxy.wait(lambda found: urls(found) == ({first.url}, {second.url}))
        assert proxy.complete().status == 200
        assert (len(first.completions), len(second.completions)) == (1, 1)
        coordinator.kill()
        assert proxy.complete().status == 200
        assert len(first.completions) == 2, "what was known is used"
        coordinator.start()
        prefill.close()
        first.is_healthy = False

        def is_gone(found: Any) -> bool:
            prefills, decodes = urls(found)
            assert decodes == {second.url}, "also while a coordinator that has started again knows no server"
            return not prefills

        proxy.wait(is_gone)
        assert proxy.complete().status == 200
        assert len(first.completions) == 2


def test_what_members_say_of_engines_may_be_wrong(tmp_path: Path) -> None:
    """It is left out, and neither stops the proxy nor hides what others say."""
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(tmp_path))
        decode = stack.enter_context(LocalEngine("d"))
        wrong: list[Any] = [5, {"url": 1}, "http://127.0.0.1:1", [7, None, "http://\x00h:1", "http://h:1/v1", "h:1"]]
        metadata = [{name: each} for name in ("engine_urls", "prefill_urls", "decode_urls") for each in wrong]
        many = [f"http://127.0.0.1:{number}" for number in range(1, 200)]
        for number, each in enumerate([*metadata, {"prefill_urls": many}, {"decode_urls": [decode.url]}]):
            body = {
                "instance_id": f"s{number}",
                "ip": "10.0.0.7",
                "http_port": 80,
                "incarnation": "1",
                "metadata": each,
            }
            assert coordinator.ask("POST", "/instances", body).status == 200
        proxy = stack.enter_context(ProxyProcess(tmp_path, [], [], "--coordinator-url", coordinator.url))
        found = proxy.wait(lambda found: urls(found)[1] == {decode.url})
        assert urls(found)[0] == set(many[:64]), "of one server"
        assert proxy.complete().status == 200


def test_a_coordinator_that_is_silent_or_dead_delays_no_request_for_long(scene: Scene) -> None:
    scene.has(scene.second, 5)
    process = scene.coordinator.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    assert sum(scene.prefilled()) == REQUESTS
    assert scene.proxy.log.read_text().count("prefill is chosen by load alone") == 1, "it is left alone for a while"
    process.send_signal(signal.SIGCONT)
    scene.coordinator.kill()
    assert sum(scene.prefilled()) == REQUESTS
