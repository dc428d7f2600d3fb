"""The residency feed of L1: a snapshot and the changes since are what L1 has, whatever happens meanwhile; on both kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lmcache_core.contracts.residency import Change, ChangeKind, Overrun, SnapshotPart
from lmcache_core.kernels.choice import PURE, choose_kernels
from lmcache_core.l1 import journal as journal_module
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, LeaseKind, Owner, OwnerKind
from lmcache_core.model.keys import HASH_BYTES, HashChain, KeySpace

WORKER = Owner(OwnerKind.WORKER, 7)
PAYLOADS = (4096, 12288)
NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)


def hashes(*numbers: int) -> list[bytes]:
    return [number.to_bytes(HASH_BYTES, "big") for number in numbers]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_SLICE_SLOTS", 3)


class Reader:
    """Keeps a copy of what L1 has."""

    def __init__(self, cache: L1Cache) -> None:
        self._feed = cache.feed
        self.has: set[tuple[KeySpace, bytes]] = set()
        self.next = 0
        self.snapshots = 0
        self._parts: Iterator[SnapshotPart] | None = None
        self._begins_at = 0

    def step(self, keys: int) -> None:
        """One part of a snapshot that is under way, or some changes."""
        if self._parts is None:
            part = self._feed.read(self.next, keys)
            if not isinstance(part, Overrun):
                self._apply(part.changes)
                self.next = part.first + sum(len(each.hashes) // HASH_BYTES for each in part.changes)
                return
            self._parts = self._feed.snapshot(keys)
            self.snapshots += 1
            self.has.clear()
        following = next(self._parts, None)
        if following is None:
            self._parts, self.next = None, self._begins_at
            return
        self._begins_at = following.begins_at
        self._apply(following.objects)

    def catch_up(self) -> None:
        while self._parts is not None or self.next != self._feed.end:
            self.step(5)

    def _apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for at in range(0, len(change.hashes), HASH_BYTES):
                key = (change.space, change.hashes[at : at + HASH_BYTES])
                if change.kind is ChangeKind.STORE:
                    self.has.add(key)
                else:
                    self.has.discard(key)


class FeedMachine(RuleBasedStateMachine):
    @initialize(native=st.booleans(), kept=st.sampled_from([4, 1000]))
    def start(self, native: bool, kept: int) -> None:
        self.arena = anonymous_arena(16384 * 24)
        self.cache = L1Cache(self.arena, 4096, choose_kernels("auto") if native else PURE)
        self.cache._index.journal._keys_max = kept
        self.records = [
            self.cache.intern(KeySpace("m", 1, 0, str(payload), 16, HashChain.BLAKE3, bytes(16)), payload)
            for payload in PAYLOADS
        ]
        self.cache.feed.open()
        self.reader = Reader(self.cache)
        self.readers: list[Lease] = []

    @rule(space=st.integers(0, 1), numbers=NUMBERS, temporary=st.booleans(), read=st.booleans(), kept=st.booleans())
    def store(self, space: int, numbers: list[int], temporary: bool, read: bool, kept: bool) -> None:
        lease, _ = self.cache.reserve(WORKER, self.records[space], hashes(*numbers), None)
        slots = list(lease.slots)
        if not kept:
            self.cache.discard(lease, slots)
            return
        readers = []
        if read:
            reader = Lease(WORKER, LeaseKind.READ, [], None)
            with self.cache._index.lock:
                self.cache.leases.table.add(reader)
            self.readers.append(reader)
            readers = [reader]
        if slots:
            self.cache.publish(lease, slots, readers, temporary=temporary)

    @rule()
    @precondition(lambda self: self.readers)
    def release(self) -> None:
        self.cache.leases.end(self.readers.pop(0))

    @rule(slots=st.lists(st.integers(0, 40), max_size=10, unique=True))
    def evict(self, slots: list[int]) -> None:
        self.cache.take_access_log()
        self.cache.evict([slot for slot in slots if slot < self.cache.contents.slot_numbers])

    @rule(space=st.integers(0, 1), numbers=NUMBERS, force=st.booleans())
    def drop(self, space: int, numbers: list[int], force: bool) -> None:
        self.cache.contents.drop(self.records[space].space, hashes(*numbers), force)

    @rule(force=st.booleans())
    def clear(self, force: bool) -> None:
        self.cache.contents.clear(force)

    @rule(times=st.integers(1, 5), keys=st.sampled_from([1, 4, 100]))
    def read(self, times: int, keys: int) -> None:
        for _ in range(times):
            self.reader.step(keys)

    @rule()
    def compare(self) -> None:
        self.reader.catch_up()
        views = self.cache.contents.views(0, self.cache.contents.slot_numbers)
        assert self.reader.has == {
            (view.key.space, view.key.chunk_hash) for view in views if view.state in ("cached", "held")
        }

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.compare()
            self.cache.feed.close()
            self.arena.close()


TestFeedMachine = FeedMachine.TestCase
TestFeedMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
