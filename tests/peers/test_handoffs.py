"""An engine of the first server prefills, one of the second decodes: what is stored is pulled while the rest is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from lmcache_client import EngineChannel
from lmcache_client.handoff import (
    CANCELLED,
    COMPLETE,
    HANDOFF_CANCEL,
    HANDOFF_CHUNK,
    HANDOFF_COMPLETE,
    HANDOFF_FOLLOW,
    HANDOFF_OPEN,
    HANDOFF_WAIT,
    OPEN,
)
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_p2p.followed import HELD_SECONDS
from tests.peers.site import CHUNK_TOKENS, Fleet, PeerServer, prompt, until

CHUNKS = 4
PROGRESS_SECONDS = 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), 2) as fleet:
        yield fleet


class Prefill:
    """An engine that stores a prompt chunk by chunk, and says so."""

    def __init__(self, server: PeerServer, engine: FakeEngine, tokens: list[int], handoff: str) -> None:
        self._engine, self._tokens, self._handoff = engine, tokens, handoff
        self._channel = EngineChannel(f"tcp://127.0.0.1:{server.process.port}")

    def __enter__(self) -> Prefill:
        self.say(HANDOFF_OPEN, self._engine.key(self._tokens, "p", 0, len(self._tokens), of_worker=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def say(self, step: Any, *payload: Any) -> None:
        self._channel.call(step, self._handoff, *payload)

    def store(self, chunk: int) -> None:
        assert self._engine.store(self._tokens, "p", chunk * CHUNK_TOKENS, (chunk + 1) * CHUNK_TOKENS)
        self.say(HANDOFF_CHUNK, chunk + 1)


class Decode:
    """An engine that waits for it at its own server."""

    def __init__(self, server: PeerServer, engine: FakeEngine, tokens: list[int], handoff: str) -> None:
        self.server, self._engine, self._tokens, self._handoff = server, engine, tokens, handoff
        self._channel = EngineChannel(f"tcp://127.0.0.1:{server.process.port}")

    def __enter__(self) -> Decode:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def follow(self, of: str = "s0", known: int = 0) -> None:
        key = self._engine.key(self._tokens, "d", 0, len(self._tokens), of_worker=False)
        self._channel.call(HANDOFF_FOLLOW, self._handoff, of, known, key)

    def wait(self, known: int = -1, seconds: float = PROGRESS_SECONDS) -> tuple[str, int]:
        said = self._channel.call(
            HANDOFF_WAIT, self._handoff, known, seconds, timeout_seconds=seconds + PROGRESS_SECONDS
        )
        return said.state, said.chunks

    def over(self) -> str:
        """Its state when it is not waited for any more, as the connector waits."""
        state, known = self.wait()
        while state == OPEN:
            before = known
            state, known = self.wait(known)
            if known == before:
                break
        return state

    def found(self) -> int:
        """Chunks that a lookup finds, whose bytes are right; they are read and released."""
        hits = self._engine.lookup(self._tokens, "d")
        if hits:
            self.retrieve(hits)
        self._engine.end("d")
        return hits

    def look_up(self, readers: int) -> None:
        """All of it, for this number of ranks that read the same shard."""
        key = self._engine.key(self._tokens, "d", 0, len(self._tokens), of_worker=False)
        assert self._engine.scheduler.lookup_hits(replace(key, num_kv_readers=readers)) == CHUNKS

    def retrieve(self, chunks: int) -> None:
        said = self._engine.retrieve(self._tokens, "d", end=chunks * CHUNK_TOKENS)
        assert said == [self._engine.content(self._tokens, chunk) for chunk in range(chunks)]

    def reader(self, name: str) -> Any:
        return self.server.status()["reader"][name]

    def has_read(self, objects: int) -> bool:
        return self.read() == objects

    def read(self) -> int:
        """Objects that its server has read from the other one."""
        peers = self.reader("peers")
        return int(peers["s0"].get("read", 0)) if "s0" in peers else 0


@pytest.fixture
def site(fleet: Fleet) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(fleet: Fleet, site: ExitStack, number: int, handoff: str) -> tuple[Prefill, Decode]:
    one, two = fleet.servers
    tokens = prompt(number, CHUNKS)
    first, second = site.enter_context(one.engine()), site.enter_context(two.engine())
    decode = site.enter_context(Decode(two, second, tokens, handoff))
    return site.enter_context(Prefill(one, first, tokens, handoff)), decode


def held(server: PeerServer) -> tuple[int, int]:
    """Objects of L1 that are referenced, and all of them."""
    l1 = server.process.status()["l1"]
    assert l1["state_counts_add_up"]
    return l1["held"], l1["held"] + l1["cached"]


def test_a_chunk_is_pulled_while_later_ones_are_not_stored(fleet: Fleet, site: ExitStack) -> None:
    prefill, decode = pair(fleet, site, 20, "chunk by chunk")
    before, asked = decode.read(), decode.reader("directory_asked")
    decode.follow()
    assert decode.wait() == (OPEN, 0)
    for chunk in range(CHUNKS):
        prefill.store(chunk)
        assert decode.wait(chunk) == (OPEN, chunk + 1)
        until(partial(decode.has_read, before + chunk + 1))
    prefill.say(HANDOFF_COMPLETE)
    assert decode.wait(CHUNKS) == (COMPLETE, CHUNKS)
    decode.look_up(readers=2)
    assert decode.read() == before + CHUNKS, "each object is read once"
    assert decode.reader("directory_asked") == asked, "the directory has no part in it"
    time.sleep(HELD_SECONDS)
    for _ in range(2):
        assert held(decode.server) == (CHUNKS, CHUNKS), "it leaves L1 when every rank has read it"
        decode.retrieve(CHUNKS)
    until(lambda: held(decode.server) == (0, 0))
    assert held(fleet.servers[0]) == (0, CHUNKS), "and stays where it was computed"


def test_what_was_stored_before_is_pulled_when_it_is_complete(fleet: Fleet, site: ExitStack) -> None:
    """The prompt is cached at prefill's server, whose engine stores nothing; decode is asked twice, also later."""
    prefill, decode = pair(fleet, site, 21, "cached")
    for chunk in range(CHUNKS):
        prefill.store(chunk)
    prefill.say(HANDOFF_COMPLETE)
    asked = decode.reader("directory_asked")
    for _ in range(2):
        decode.follow()
        assert decode.over() == COMPLETE
        assert decode.found() == CHUNKS
    until(lambda: held(decode.server) == (0, 0))
    decode.follow()
    assert (decode.over(), decode.found()) == (COMPLETE, CHUNKS)
    assert decode.reader("directory_asked") == asked


def test_it_is_followed_before_it_is_opened(fleet: Fleet, site: ExitStack) -> None:
    one, two = fleet.servers
    tokens = prompt(22, CHUNKS)
    first, second = site.enter_context(one.engine()), site.enter_context(two.engine())
    decode = site.enter_context(Decode(two, second, tokens, "later"))
    decode.follow(known=-1)
    with Prefill(one, first, tokens, "later") as prefill:
        assert decode.wait() == (OPEN, 0)
        prefill.store(0)
        prefill.say(HANDOFF_CANCEL)
        assert decode.over() == CANCELLED
        assert decode.found() == 1, "what is there"


@pytest.mark.parametrize(
    ("server", "handoff", "number"), [("s0", "forged", 23), ("nowhere", "right", 23), ("s0", "of another", 24)]
)
def test_one_that_is_forged_or_of_another_prompt(
    fleet: Fleet, site: ExitStack, server: str, handoff: str, number: int
) -> None:
    """Or of a server that no coordinator has named.  It is not waited for, and nothing is pulled."""
    one, two = fleet.servers
    first, second = site.enter_context(one.engine()), site.enter_context(two.engine())
    prefill = site.enter_context(Prefill(one, first, prompt(23, CHUNKS), handoff.replace("forged", "true")))
    prefill.store(0)
    decode = site.enter_context(Decode(two, second, prompt(number, CHUNKS), handoff))
    before = decode.read()
    decode.follow(server)
    assert decode.over() == CANCELLED
    assert decode.read() == before


def test_prefills_server_is_stopped_half_way(fleet: Fleet, site: ExitStack) -> None:
    prefill, decode = pair(fleet, site, 26, "stopped")
    decode.follow()
    prefill.store(0)
    until(lambda: decode.wait(0) == (OPEN, 1))
    fleet.servers[0].process.pause()
    try:
        assert decode.wait(1) == (CANCELLED, 1), "it is not waited for"
        assert decode.found() <= 1
    finally:
        fleet.servers[0].process.resume()
    until(lambda: held(decode.server)[0] == 0)
    until(lambda: decode.reader("peers")["s0"]["open"])  # it is asked again after a while


def test_both_engines_of_one_server(fleet: Fleet, site: ExitStack) -> None:
    """Which needs no peer."""
    one, _ = fleet.servers
    tokens = prompt(27, CHUNKS)
    first, second = site.enter_context(one.engine()), site.enter_context(one.engine())
    decode = site.enter_context(Decode(one, second, tokens, "own"))
    with Prefill(one, first, tokens, "own") as prefill:
        decode.follow()
        prefill.store(0)
        assert decode.wait(0) == (OPEN, 1)
        for chunk in range(1, CHUNKS):
            prefill.store(chunk)
        prefill.say(HANDOFF_COMPLETE)
        assert (decode.over(), decode.found()) == (COMPLETE, CHUNKS)


def test_the_receivers_server_is_killed_half_way(fleet: Fleet, site: ExitStack) -> None:
    """Nothing is left at prefill's.  Near the end: it starts anew."""
    prefill, decode = pair(fleet, site, 28, "receiver")
    decode.follow()
    prefill.store(0)
    until(lambda: decode.wait(0) == (OPEN, 1))
    one, two = fleet.servers
    two.process.kill()
    prefill.store(1)
    prefill.say(HANDOFF_COMPLETE)
    until(lambda: one.status()["leases"] == 0)
    assert held(one)[0] == 0
    two.start()
    until(lambda: fleet.members() == 2)
    again = site.enter_context(Decode(two, site.enter_context(two.engine()), prompt(28, CHUNKS), "receiver"))

    def is_complete() -> bool:
        again.follow()
        return again.over() == COMPLETE

    until(is_complete)  # once the coordinator has seen that it is another one
    assert again.found() == 2


def test_prefills_server_is_killed_half_way(fleet: Fleet, site: ExitStack) -> None:
    """What was pulled is found without it; when it is back it is asked again, under the key that it has now.  The last test."""
    prefill, decode = pair(fleet, site, 29, "killed")
    before = decode.read()
    decode.follow()
    prefill.store(0)
    prefill.store(1)
    until(lambda: decode.read() == before + 2)
    fleet.servers[0].process.kill()
    assert decode.over() == CANCELLED
    assert decode.found() == 2
    one = fleet.servers[0]
    one.start()
    until(lambda: fleet.members() == 2)
    with one.engine() as engine:
        assert engine.store(prompt(29, CHUNKS), "again")
    until(lambda: decode.found() == CHUNKS)
