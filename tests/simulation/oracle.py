"""What must hold after every step: who may touch which slot, what its bytes must be, and what the server owes.

Every holder that may touch a slot claims it here: engines between the answer to a prepare and their commit, backends while a
buffer is borrowed to them.  The bytes of a chunk follow from its key, so that a byte of anybody else is seen wherever it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

from blake3 import blake3

from lmcache_core.app.server import Server
from lmcache_core.model.keys import pack_kv_rank
from tests.simulation.network import Connection, Network
from tests.simulation.runtime import Process

PAYLOAD_BYTES: Final = 256
WHOLE: Final = pack_kv_rank(1, 0)
"""The only shard in a world of one."""
HEADER_BYTES: Final = 4096
STORY_LINES: Final = 30
ANSWER_SECONDS: Final = 10.0
"""Longest that a request may wait for its answer while its engine reads and the server runs."""


class ViolationError(AssertionError):
    """Something happened that must not."""


class Holder(NamedTuple):
    """Who touches a slot: a process, for a request of its or for a backend's job."""

    process: Process
    what: str

    def __str__(self) -> str:
        return f"{self.process} ({self.what})"


class Watch:
    """A copy out of a slot."""

    def __init__(self, segment: str, offset: int, holder: Holder) -> None:
        self.segment, self.offset, self.holder = segment, offset, holder
        self.lost = False
        """The slot was free to be given away meanwhile."""


@lru_cache(65536)
def content(model: str, salt: str, chunk_hash: bytes, rank: int = WHOLE) -> bytes:
    """The only right bytes of a chunk's shard."""
    return blake3(b"\0".join((model.encode(), salt.encode(), rank.to_bytes(4, "big"), chunk_hash))).digest(
        PAYLOAD_BYTES
    )


class Oracle:
    """Claims by shared-memory segment, of which each server has its own, and payload offset."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._history: deque[tuple[float, int, str]] = deque(maxlen=2000)
        """When, which slot (0: all), what."""
        self._writers: dict[tuple[str, int], Holder] = {}
        self._readers: dict[tuple[str, int], list[Holder]] = {}
        self._watches: dict[Watch, None] = {}
        self.violation: ViolationError | None = None
        """The first one: it may have been raised in a thread that goes on after exceptions."""
        self.chunks_compared = 0

    def claim(self, segment: str, offset: int, holder: Holder, *, writes: bool) -> None:
        place = (segment, offset)
        writer, readers = self._writers.get(place), self._readers.get(place, ())
        if writer is not None:
            verb = "written" if writes else "read"
            self.fail(f"slot {offset} is given to {holder} to be {verb} while {writer} may write it", offset)
        if writes and readers:
            self.fail(f"slot {offset} is given to {holder} to be written while {readers[0]} reads it", offset)
        self.note(f"{holder} may {'write' if writes else 'read'} {offset}", offset)
        if writes:
            self._writers[place] = holder
        else:
            self._readers.setdefault(place, []).append(holder)

    def release(self, segment: str, offset: int, holder: Holder) -> None:
        place = (segment, offset)
        self.note(f"{holder} releases {offset}", offset)
        if self._writers.get(place) is holder:
            del self._writers[place]
        readers = self._readers.get(place)
        if readers and holder in readers:
            readers.remove(holder)
            if not readers:
                del self._readers[place]

    def forget(self, process: Process) -> None:
        """It was killed: it touches nothing any more."""
        self._writers = {place: holder for place, holder in self._writers.items() if holder.process is not process}
        kept = {
            place: [each for each in holders if each.process is not process] for place, holders in self._readers.items()
        }
        self._readers = {place: holders for place, holders in kept.items() if holders}

        self._watches = {watch: None for watch in self._watches if watch.holder.process is not process}

    @contextmanager
    def watched(self, segment: str, offset: int, holder: Holder) -> Iterator[Watch]:
        """Around the copy of a reader that may lose its slot, and throws away what it has read when it has."""
        watch = Watch(segment, offset, holder)
        self._watches[watch] = None
        try:
            yield watch
        finally:
            self._watches.pop(watch, None)

    @property
    def claims(self) -> int:
        return len(self._writers) + len(self._readers)

    def compare(
        self, found: bytes, model: str, salt: str, chunk_hash: bytes, where: str, slot: int = 0, rank: int = WHOLE
    ) -> None:
        self.chunks_compared += 1
        if found != content(model, salt, chunk_hash, rank):
            self.fail(f"{where} has the bytes of another chunk than {chunk_hash.hex()[:8]} of {model!r} {salt!r}", slot)

    def note(self, what: str, slot: int = 0) -> None:
        """For the report of a violation."""
        self._history.append((self.network.runtime.now, slot, what))

    def fail(self, what: str, slot: int = 0) -> None:
        if self.violation is None:
            story = [f"{when:.4f} {text}" for when, of, text in self._history if of in (0, slot)]
            story.append(f"{self.network.runtime.now:.4f} that is seen")
            self.violation = ViolationError("\n    ".join([what, *story[-STORY_LINES:]]))
        raise self.violation

    # --- after every step

    def audit(self, server: Server) -> None:
        """Every byte of every chunk that can be found is the one that its key names."""
        cache: Any = server._parts.tiers.cache
        if cache._index.lock.locked():
            return  # a thread is in the middle of a change
        table, spaces, view = cache._table, cache._index.spaces, cache._arena.region.view
        held = set()
        for slot in range(len(table)):
            state = table.state(slot)
            if state is None:
                continue
            number, chunk_hash, holds, is_findable, _ = state
            begin = cache.payload_offset(slot)
            if holds:
                held.add(begin)
            if not is_findable:
                continue
            space = spaces.numbered(number).space
            self.compare(
                bytes(view[begin : begin + PAYLOAD_BYTES]),
                space.model_name,
                space.cache_salt,
                chunk_hash,
                f"slot {begin}",
                begin,
                space.kv_rank,
            )
        self._check_held(cache._arena.region.name, held)

    def _check_held(self, segment: str, held: set[int]) -> None:
        """A slot that one holder touches is given to no other."""
        for (where, offset), writer in self._writers.items():
            if where == segment and offset not in held:
                self.fail(f"slot {offset} is free to be given away while {writer} may write it", offset)
        for (where, offset), readers in self._readers.items():
            if where == segment and offset not in held:
                self.fail(f"slot {offset} is free to be given away while {readers[0]} reads it", offset)
        for watch in self._watches:
            watch.lost = watch.lost or (watch.segment == segment and watch.offset not in held)

    def answers(self, server: Process, now: float) -> None:
        """Every request that was read is answered while its connection lives."""
        for connection in self.network.connections:
            if connection.owed and not server.frozen and not connection.client.frozen:
                self._check_owed(connection, server, now)

    def _check_owed(self, connection: Connection, server: Process, now: float) -> None:
        uid, since = next(iter(connection.owed.items()))
        since = max(since, server.thawed_at, connection.client.thawed_at)
        if connection.to_dealer or connection.dealer.incoming:
            since = max(since, connection.read_at)  # it has not read what is before its answer
        if now - since > ANSWER_SECONDS:
            self.fail(
                f"request {uid.hex()} of {connection.client} and {len(connection.owed) - 1} more are not answered after "
                f"{now - since:.0f} s"
            )
