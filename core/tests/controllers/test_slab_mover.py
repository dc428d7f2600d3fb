"""Models with different chunk sizes share L1: room goes where the stores are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from blake3 import blake3

from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.policies import AccessFacts, EvictionPolicy, RequestFacts
from lmcache_core.controllers.eviction import EvictionController, SlabMover
from lmcache_core.l1.arena import Arena, anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit

L1_BYTES = 16 << 20
SMALL, LARGE, HUGE = 60 << 10, 196 << 10, 3 << 20
"""Payloads whose slots do not divide each other, nor a slab of 2 MiB; the last is larger than a slab."""
STEPS_MAX = 100_000


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = anonymous_arena(L1_BYTES)
    yield arena
    arena.close()


class Model:
    """Stores chunks of one size, batch after batch, as an engine does: what finds no room is not stored."""

    def __init__(self, cache: L1Cache, name: str, payload_bytes: int) -> None:
        self.cache, self.payload_bytes = cache, payload_bytes
        self.record = cache.intern(KeySpace(name, 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), payload_bytes)
        self.owner = Owner(OwnerKind.WORKER, hash(name))
        self.stored = self.offered = 0

    def store(self, chunks: int) -> list[int]:
        """Chunks that were not offered before.  Returns the slots of those that found room."""
        self.offered += chunks
        return self._store(self.offered - chunks, chunks)

    def store_patiently(self, chunks: int, eviction: EvictionController) -> None:
        """As `store`, and once more, after eviction, what found no room: as a store that waits."""
        done = len(self.store(chunks))
        eviction.cycle()
        if done < chunks:
            self._store(self.offered - chunks + done, chunks - done)

    def _store(self, first: int, chunks: int) -> list[int]:
        hashes = [number.to_bytes(32, "big") for number in range(first, first + chunks)]
        lease, _ = self.cache.reserve(self.owner, self.record, hashes, None)
        slots = list(lease.slots)
        assert self.cache.publish(lease, slots)
        self.stored += len(slots)
        return slots

    def hit(self, newest: int) -> tuple[Lease, list[int]]:
        """Look the newest chunks up, and hold what is there."""
        first = max(0, self.offered - newest)
        lease = self.cache.leases.open(self.owner, None)
        hashes = [number.to_bytes(32, "big") for number in range(first, self.offered)]
        slots = [slot for slot in self.cache.leases.acquire(lease, self.record, hashes) if slot >= 0]
        self.cache.log_access(slots, AccessFacts(0, RequestFacts()))
        return lease, slots

    @property
    def share(self) -> float:
        """Of L1, in bytes of its objects."""
        return self.record.objects * (HEADER_BYTES + self.payload_bytes) / L1_BYTES

    def load(self, eviction: EvictionController, bytes_each: int, rounds: int) -> float:
        """Store at full load.  Returns the share that was stored."""
        before, offered = self.stored, self.offered
        for _ in range(rounds):
            self.store_patiently(max(1, bytes_each // self.payload_bytes), eviction)
        audit(self.cache)
        assert self.cache.contents.state_counts().is_balanced
        return (self.stored - before) / (self.offered - offered)


def start(arena: Arena, policy: EvictionPolicy | None = None) -> tuple[L1Cache, EvictionController]:
    cache = L1Cache(arena, 4096)
    return cache, EvictionController(cache, policy or open_lru(None), 0.9, 0.1, EventRecorder())


def nothing(wanted_bytes: int) -> list[int]:
    """A policy without an opinion."""
    return []


@pytest.mark.parametrize(("one", "other", "least"), [(SMALL, LARGE, 0.7), (SMALL, HUGE, 0.5), (LARGE, HUGE, 0.5)])
def test_models_that_take_turns_at_full_load_each_get_the_arena(
    arena: Arena, one: int, other: int, least: float
) -> None:
    cache, eviction = start(arena)
    models = [Model(cache, "one", one), Model(cache, "other", other)]
    for turn in range(6):
        active, idle = models[turn % 2], models[1 - turn % 2]
        # Two arenas full, in batches of a sixteenth: enough to take over, if room comes at the rate of the stores.
        stored = active.load(eviction, L1_BYTES // 16, 32)
        assert stored > 0.95, f"turn {turn}"
        assert active.share > least, f"turn {turn}"
        assert idle.share < 0.15, f"turn {turn}"


def test_two_models_at_full_load_at_once_both_keep_a_share(arena: Arena) -> None:
    cache, eviction = start(arena)
    one, other = Model(cache, "one", SMALL), Model(cache, "other", LARGE)
    one.load(eviction, L1_BYTES // 16, 32)
    for turn in range(100):
        for model in (one, other):
            assert model.load(eviction, L1_BYTES // 32, 1) > 0.5, f"turn {turn}"
        assert turn < 16 or min(one.share, other.share) > 0.2, f"turn {turn}"
    assert other.stored / other.offered > 0.95


def test_a_quiet_model_is_not_starved_by_a_busy_one(arena: Arena) -> None:
    """It stores a tenth of what the other one does, and gets all of that in, and about that share of the arena."""
    cache, eviction = start(arena)
    busy, quiet = Model(cache, "busy", SMALL), Model(cache, "quiet", LARGE)
    busy.load(eviction, L1_BYTES // 16, 32)
    for _ in range(200):
        busy.store(L1_BYTES // 20 // SMALL)
        if _ % 2:
            quiet.store(L1_BYTES // 100 // LARGE or 1)
        eviction.cycle()
    assert quiet.stored / quiet.offered > 0.9
    assert 0.05 < quiet.share < 0.3
    assert busy.share > 0.5


def test_chunks_that_are_used_stay_when_another_model_comes(arena: Arena) -> None:
    """The newcomer takes what is cold, not what is hit again and again."""
    cache, eviction = start(arena)
    old, new = Model(cache, "old", SMALL), Model(cache, "new", LARGE)
    old.load(eviction, L1_BYTES // 16, 32)
    hot = L1_BYTES // 4 // SMALL
    for _ in range(6):
        new.load(eviction, L1_BYTES // 32, 2)
        lease, slots = old.hit(hot)
        cache.leases.end(lease)
        eviction.cycle()
    assert len(slots) > hot * 0.7
    assert new.share > 0.2


def test_slots_that_are_referenced_are_never_handed_over(arena: Arena) -> None:
    """Every slab has a slot that is read and one that is being written; the arena changes hands when they are released."""
    cache, eviction = start(arena)
    old, new = Model(cache, "old", SMALL), Model(cache, "new", LARGE)
    slots = old.store(L1_BYTES // SMALL)
    reading, held = old.hit(old.offered)
    cache.leases.release(reading, [slot for slot in held if slot % 16])
    kept = {slot: cache.key_of(slot) for slot in reading.slots}
    assert len(slots) > 200
    for _ in range(20):
        new.store(20)
        eviction.cycle()
        assert {slot: cache.key_of(slot) for slot in reading.slots} == kept
        audit(cache)
    assert new.share == 0, "every slab had a slot in use"
    cache.leases.end(reading)
    assert new.load(eviction, L1_BYTES // 16, 32) > 0.75
    assert new.share > 0.65


def test_a_size_whose_neighbours_are_held_lives_on_its_own(arena: Arena) -> None:
    cache, eviction = start(arena)
    old, new = Model(cache, "old", SMALL), Model(cache, "new", LARGE)
    new.store(20)
    old.store(L1_BYTES // SMALL)
    lease, _ = old.hit(old.offered)
    before = new.stored
    for _ in range(10):
        new.store(4)
        eviction.cycle()
    assert new.stored - before > 30
    cache.leases.end(lease)


def test_a_policy_that_never_evicts_is_not_overruled(arena: Arena) -> None:
    class Never(EvictionPolicy):
        evicts = False

        def on_insert(self, slots: object, facts: object) -> None: ...
        def on_access(self, slots: object, facts: object) -> None: ...
        def on_remove(self, slots: object) -> None: ...
        def victims(self, demand: object, may_evict: object) -> tuple[int, ...]:
            return ()

    cache, eviction = start(arena, Never())
    old, new = Model(cache, "old", SMALL), Model(cache, "new", LARGE)
    old.store(L1_BYTES // SMALL)
    before = cache.objects
    new.load(eviction, L1_BYTES // 16, 4)
    assert cache.objects == before


def test_what_a_size_is_owed_is_paid_in_slabs_and_not_for_ever(arena: Arena) -> None:
    cache, _ = start(arena)
    old, new = Model(cache, "old", SMALL), Model(cache, "new", LARGE)
    old.store(L1_BYTES // SMALL)
    mover, size = SlabMover(cache), HEADER_BYTES + LARGE
    assert mover.shared({size: 1, HEADER_BYTES + SMALL: 1}) == {size: 1}
    assert mover.make_space({size: size}, {}, nothing) > 0, "it had nothing at all"
    there = cache.slabs.available_bytes(size)
    assert cache.slabs.slab_bytes // 2 < there <= cache.slabs.slab_bytes
    assert mover.make_space({size: size}, {}, nothing) == 0, "there is room now"
    new.store(there // size)
    assert mover.make_space({size: 4 * cache.slabs.slab_bytes}, {size: 4 * cache.slabs.slab_bytes}, nothing) == 0, (
        "eviction was enough"
    )
    mover.make_space({size: 3 * cache.slabs.slab_bytes}, {size: size}, nothing)
    assert 2.5 * cache.slabs.slab_bytes < cache.slabs.available_bytes(size) < 4.5 * cache.slabs.slab_bytes
    new.store(cache.slabs.available_bytes(size) // size)
    assert mover.make_space({size: size}, {size: size}, nothing) == 0, "it was paid"


def test_no_more_is_set_in_motion_than_is_owed_while_slots_are_held(arena: Arena) -> None:
    cache, _ = start(arena)
    old = Model(cache, "old", SMALL)
    old.store(L1_BYTES // SMALL)
    lease, held = old.hit(old.offered)
    cache.leases.release(lease, [slot for slot in held if slot % 16])
    mover, size = SlabMover(cache), HEADER_BYTES + LARGE
    for _ in range(10):
        mover.make_space({size: cache.slabs.slab_bytes}, {}, nothing)
        assert cache.slabs.moving_bytes(size) <= 3 * cache.slabs.slab_bytes
    assert cache.slabs.moving_bytes(size) >= 2 * cache.slabs.slab_bytes
    cache.leases.end(lease)
    assert cache.slabs.available_bytes(size) == 0, "what was held is a hit for others still"
    mover.make_space({size: 1}, {}, nothing)
    assert cache.slabs.moving_bytes(size) == 0
    assert cache.slabs.available_bytes(size) > 1.5 * cache.slabs.slab_bytes


def test_bytes_are_right_while_slabs_move_under_full_load(arena: Arena) -> None:
    """Three models store, read back what they hold, and leave stores half done, while eviction runs as fast as it can."""
    cache, eviction = start(arena)
    over, wrong, read = threading.Event(), [], Counter[int]()

    def work(name: str, payload_bytes: int, batch: int) -> None:
        model = Model(cache, name, payload_bytes)
        random = Random(name)
        for step in count():
            if step >= 120 and (read[payload_bytes] or step >= STEPS_MAX):
                return  # on a busy machine, all steps may be over before eviction has had the processor
            numbers = [random.randrange(200) for _ in range(batch)]
            hashes = list(dict.fromkeys(blake3(f"{name} {number}".encode()).digest() for number in numbers))
            lease, indexes = cache.reserve(model.owner, model.record, hashes, None)
            for slot, index in zip(lease.slots, indexes, strict=True):
                cache.buffer(slot).view[HEADER_BYTES:] = hashes[index] * (payload_bytes // 32)
            if step % 7 and lease.slots:
                assert cache.publish(lease, list(lease.slots))
            else:
                cache.leases.end(lease)
            reader = cache.leases.open(model.owner, None)
            for chunk_hash, slot in zip(hashes, cache.leases.acquire(reader, model.record, hashes), strict=True):
                if slot >= 0:
                    read[payload_bytes] += 1
                    if cache.buffer(slot).view[HEADER_BYTES:] != chunk_hash * (payload_bytes // 32):
                        wrong.append(slot)
            cache.leases.end(reader)

    def evict() -> None:
        while not over.is_set():
            eviction.cycle()

    evictor = threading.Thread(target=evict)
    workers = [
        threading.Thread(target=work, args=args) for args in (("one", SMALL, 16), ("two", LARGE, 8), ("three", HUGE, 1))
    ]
    for thread in (evictor, *workers):
        thread.start()
    for worker in workers:
        worker.join(60)
    over.set()
    evictor.join(10)
    assert not any(thread.is_alive() for thread in (evictor, *workers))
    assert wrong == []
    assert min(read[SMALL], read[LARGE], read[HUGE]) > 0
    audit(cache)
    counts = cache.contents.state_counts()
    assert (counts.held, counts.leases) == (0, 0)


def test_a_stretch_with_something_pinned_in_it_does_not_move(arena: Arena) -> None:
    """It would be of no use until the pin is removed, and its waiters would wait as long."""
    cache, eviction = start(arena)
    small, large = Model(cache, "small", SMALL), Model(cache, "large", LARGE)
    small.load(eviction, L1_BYTES // 16, 32)
    lease, slots = small.hit(small.offered)
    slab_of = {slot: slab for slot in slots if (slab := cache.slabs.find(slot))}
    pinned = {slab.number: slot for slot, slab in slab_of.items() if slab.number % 4}
    assert 2 < len(pinned) < len(set(map(id, slab_of.values())))
    cache.leases.release(lease, [slot for slot in slots if slot not in pinned.values()])
    cache.slabs.fixed_slots = lambda: list(pinned.values())
    assert large.load(eviction, L1_BYTES // 16, 32) > 0.95
    assert all(slab_of[slot].move is None for slot in pinned.values())
    assert small.load(eviction, L1_BYTES // 16, 32) > 0.95
    cache.leases.end(lease)
