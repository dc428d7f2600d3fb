"""Servers that blend find each other's documents: real servers, a coordinator, and clients without a model."""

from __future__ import annotations

import base64
import json
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from lmcache_client import BLEND_COMMIT, BLEND_LOOKUP, BLEND_PREPARE, BlendAnswer, BlendSegment, BlendSlots
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.peers.site import CHUNK_TOKENS, PeerServer, until
from tests.remote.redis_servers import RedisServer

CHUNKS: Final = 4
DOCUMENT: Final = list(range(5000, 5000 + CHUNKS * CHUNK_TOKENS))
OTHER: Final = list(range(9000, 9000 + CHUNKS * CHUNK_TOKENS))
UNKNOWN: Final = list(range(20_000, 20_000 + CHUNK_TOKENS))
QUESTION: Final = [7, 8, 9]
NOISE_SECONDS: Final = 0.1
"""Of a machine that runs other tests, too."""


class BlendFleet:
    def __init__(self, folder: Path, stack: ExitStack, servers: int, *options: str) -> None:
        """`options` of all servers."""
        flags = ("--blend-chunk-size", str(CHUNK_TOKENS), "--instance-timeout", "5")
        self.coordinator = stack.enter_context(CoordinatorProcess(folder, *flags))
        self.servers = [
            PeerServer(
                f"s{number}",
                self.coordinator.url,
                folder,
                *("--engine-type", "blend", *options),
                address=f"127.0.0.{1 + number}",
            )
            for number in range(servers)
        ]
        for server in self.servers:
            stack.enter_context(server.process)
        self.engines = [stack.enter_context(server.engine()) for server in self.servers]
        until(lambda: all(server.status()["members"] == servers for server in self.servers))

    def store(self, engine: FakeEngine, tokens: Sequence[int]) -> None:
        """Until the coordinator knows where it is."""
        assert engine.store(tokens, "store")
        engine.end("store")
        until(lambda: len(self.ask(tokens)["matches"]) == len(tokens) // CHUNK_TOKENS)

    def ask(self, tokens: Sequence[int], **more: Any) -> Any:
        asked = {"tokens_b64": base64.b64encode(array("I", tokens)).decode(), "model_name": "model"} | more
        answer = self.coordinator.ask("POST", "/directory/blend-lookup", asked)
        assert answer.status == 200, answer
        return answer.body

    def figures(self) -> dict[str, int]:
        figures: dict[str, int] = self.coordinator.ask("GET", "/directory/stats").body["blend"]
        return figures


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[BlendFleet]:
    with ExitStack() as stack:
        yield BlendFleet(tmp_path, stack, 3)


def test_the_coordinator_says_what_any_server_has_of_a_prompt(fleet: BlendFleet) -> None:
    first, second, _ = fleet.engines
    fleet.store(first, DOCUMENT)
    fleet.store(second, OTHER)
    prompt = [*QUESTION, *OTHER, *DOCUMENT]
    matches = fleet.ask(prompt)["matches"]
    starts = [len(QUESTION) + at * CHUNK_TOKENS for at in range(2 * CHUNKS)]
    assert [(each["old_st"], each["cur_st"]) for each in matches] == [
        (at % CHUNKS * CHUNK_TOKENS, start) for at, start in enumerate(starts)
    ]
    assert [each["parent_hash"] for each in matches[1:CHUNKS]] == [each["chunk_hash"] for each in matches[: CHUNKS - 1]]
    assert matches[0]["parent_hash"] == ""
    for more in ({"cache_salt": "tenant"}, {"world_size": 2}, {"layout": "00" * 16}, {"model_name": "another"}):
        assert fleet.ask(prompt, **more) == {"matches": []}
    assert fleet.figures() | {"num_lookups": 0} == {
        "num_chunks": 2 * CHUNKS,
        "num_namespaces": 1,
        "table_size": 1 << 22,
        "num_lookups": 0,
        "num_refused_pages": 0,
    }
    first.scheduler.clear()
    until(lambda: len(fleet.ask(prompt)["matches"]) == CHUNKS)  # what no server has is not named
    fleet.servers[1].process.kill()
    until(lambda: not fleet.ask(prompt)["matches"])


def look_up(engine: FakeEngine, tokens: Sequence[int], request: str) -> BlendAnswer:
    key = engine.key(tokens, request, 0, len(tokens), of_worker=False)
    answer = engine.scheduler.call(BLEND_LOOKUP, key, 10.0)
    assert isinstance(answer, BlendAnswer)
    return answer


def whole(engine: FakeEngine, tokens: Sequence[int]) -> BlendAnswer | None:
    """What is found of a prompt, where the coordinator has answered in time: this machine may be busy."""
    answer = look_up(engine, tokens, "r")
    if len(answer.segments) == len(tokens) // CHUNK_TOKENS:
        return answer
    engine.end("r")
    return None


def contents(engine: FakeEngine, tokens: Sequence[int], segments: Sequence[BlendSegment], request: str) -> list[bytes]:
    """The bytes of what a lookup has found."""
    slots = engine.worker.call(BLEND_PREPARE, engine.key(tokens, request, 0, len(tokens)), segments, engine.instance_id)
    assert isinstance(slots, BlendSlots)
    read = [engine.read(slot) for slot in slots.slots if slot is not None]
    assert engine.worker.call(BLEND_COMMIT, request, engine.instance_id)
    engine.end(request)
    return read


def test_what_one_server_has_is_blended_by_the_others(fleet: BlendFleet) -> None:
    first, *others = fleet.engines
    fleet.store(first, DOCUMENT)
    right = [first.content(DOCUMENT, chunk) for chunk in range(CHUNKS)]
    for number, engine in enumerate(others, 1):
        assert engine.store(OTHER, "own")
        engine.end("own")
        prompt = [number, *OTHER, *DOCUMENT]
        answer = until(lambda: whole(engine, prompt))  # noqa: B023 - at once
        starts = [1 + at * CHUNK_TOKENS for at in range(2 * CHUNKS)]
        assert [each.start for each in answer.segments] == starts, "its own match, and what only the first server has"
        assert [each.follows for each in answer.segments] == [at % CHUNKS > 0 for at in range(2 * CHUNKS)]
        assert contents(engine, prompt, answer.segments, "r")[CHUNKS:] == right
        status = fleet.servers[number].process.status()["modules"]["blend"]
        assert status["fleet_there"] == CHUNKS
        assert status["refused"] == {}


def test_what_only_the_shared_tier_has_is_blended(tmp_path: Path) -> None:
    """The server that stored it is killed: its memory is gone, and no peer has it."""
    with ExitStack() as stack:
        redis = RedisServer(tmp_path / "redis", free_port(), ("--save", ""))
        redis.start()
        stack.callback(redis.kill)
        adapter = {"type": "redis", "url": f"redis://127.0.0.1:{redis.port}", "shared": True}
        options = ("--l2-adapter", json.dumps(adapter), "--coordinator-l2-event-reporting")
        fleet = BlendFleet(tmp_path, stack, 2, *options)
        first, second = fleet.engines
        fleet.store(first, DOCUMENT)
        right = [first.content(DOCUMENT, chunk) for chunk in range(CHUNKS)]
        until(lambda: stored(redis) == CHUNKS)
        fleet.servers[0].process.kill()
        until(lambda: fleet.servers[1].status()["members"] == 1)
        assert second.store(OTHER, "own")
        prompt = [1, *OTHER, *DOCUMENT]
        answer = until(lambda: whole(second, prompt))
        assert contents(second, prompt, answer.segments, "r")[CHUNKS:] == right
        status = fleet.servers[1].process.status()
        assert status["modules"]["blend"]["fleet_there"] == CHUNKS
        assert [each["loaded"] for each in status["l2"] if each["type"] == "redis"] == [CHUNKS]


def stored(redis: RedisServer) -> int:
    """Objects."""
    with redis.client() as client:
        return sum(client.strlen(key) > CHUNK_TOKENS for key in client.scan_iter() if client.type(key) == b"string")


def test_without_a_coordinator_matches_are_local_and_lookups_wait_20_ms_at_most(fleet: BlendFleet) -> None:
    first, second, _ = fleet.engines
    fleet.store(first, DOCUMENT)
    assert second.store(OTHER, "own")
    prompt = [1, *OTHER, *DOCUMENT]

    def seconds(count: int, name: str) -> list[float]:
        taken = []
        for number in range(count):
            started = time.monotonic()
            answer = look_up(second, [number, *OTHER, *UNKNOWN], f"{name}{number}")
            taken.append(time.monotonic() - started)
            assert len(answer.segments) == CHUNKS
            second.end(f"{name}{number}")
        return taken

    usual = seconds(20, "before")
    fleet.coordinator.kill()
    assert len(look_up(second, prompt, "local").segments) == CHUNKS
    without = seconds(20, "after")
    assert max(without) < max(usual) + 0.020 + NOISE_SECONDS
    fleet.coordinator.start()
    until(lambda: whole(second, prompt))


def test_a_coordinator_that_starts_again_knows_it_within_a_full_sync(fleet: BlendFleet) -> None:
    fleet.store(fleet.engines[0], DOCUMENT)
    fleet.coordinator.kill()
    fleet.coordinator.start()
    until(lambda: len(fleet.ask(DOCUMENT)["matches"]) == CHUNKS)


def test_a_member_with_another_chunk_size_is_refused(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        server = PeerServer("s0", coordinator.url, tmp_path, "--engine-type", "blend")
        with server.process:
            until(lambda: "chunks of 16 tokens" in server.process.log)
            assert "--blend-chunk-size is 256" in server.process.log
            assert coordinator.ask("GET", "/instances").body["instances"] == []
