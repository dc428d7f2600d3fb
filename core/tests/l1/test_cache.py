"""Two-phase writes, counted reads, leases, quarantine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lmcache_core.contracts.policies import AccessFacts
from lmcache_core.controllers.eviction import SlabMover
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1 import slab_moves
from lmcache_core.l1.arena import Arena, anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import Accessed, Inserted, Removed, SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.l1.slab_moves import windows
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_devkit.l1_audit import audit

PAYLOAD = 8192
SLOT = HEADER_BYTES + PAYLOAD
LOOKUP = Owner(OwnerKind.LOOKUP, (b"c", "r"))
WORKER = Owner(OwnerKind.WORKER, 7)
OTHER = Owner(OwnerKind.WORKER, 8)


def hashes(*numbers: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = anonymous_arena(SLOT * 64)
    yield arena
    arena.close()


@pytest.fixture
def cache(arena: Arena, kernels: Kernels) -> Iterator[L1Cache]:
    cache = L1Cache(arena, 4096, kernels)
    yield cache
    audit(cache)
    assert cache.contents.state_counts().is_balanced


@pytest.fixture
def space(cache: L1Cache) -> SpaceRecord:
    return cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)


def store(cache: L1Cache, space: SpaceRecord, *numbers: int, temporary: bool = False) -> list[int]:
    lease, indexes = cache.reserve(WORKER, space, hashes(*numbers), None)
    assert list(indexes) == list(range(len(numbers)))
    slots = list(lease.slots)
    assert cache.publish(lease, slots, temporary=temporary)
    return slots


def keys(space: SpaceRecord, *numbers: int) -> list[bytes]:
    return [space.prefix + chunk_hash for chunk_hash in hashes(*numbers)]


def find(cache: L1Cache, space: SpaceRecord, *numbers: int) -> tuple[Lease, list[int]]:
    lease = cache.leases.open(LOOKUP, None)
    return lease, cache.leases.acquire(lease, space, hashes(*numbers))


def test_what_is_being_written_is_not_found(cache: L1Cache, space: SpaceRecord) -> None:
    lease, _ = cache.reserve(WORKER, space, hashes(1), None)
    _, slots = find(cache, space, 1)
    assert slots == [-1]
    cache.publish(lease, list(lease.slots))
    _, slots = find(cache, space, 1)
    assert slots[0] >= 0


def test_the_first_writer_wins(cache: L1Cache, space: SpaceRecord) -> None:
    first, _ = cache.reserve(WORKER, space, hashes(1, 2), None)
    second, indexes = cache.reserve(OTHER, space, hashes(1, 2, 3), None)
    assert list(indexes) == [2]
    cache.publish(first, list(first.slots))
    third, indexes = cache.reserve(OTHER, space, hashes(1, 2, 3), None)
    assert not indexes
    cache.leases.end(second)
    cache.leases.end(third)


def test_spaces_do_not_see_each_other(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, 1)
    other = cache.intern(KeySpace("m", 1, 0, "tenant", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
    _, slots = find(cache, other, 1)
    assert slots == [-1]


def test_held_objects_are_not_evicted(cache: L1Cache, space: SpaceRecord) -> None:
    slots = store(cache, space, 1, 2)
    cache.take_access_log()
    lease, _ = find(cache, space, 1)
    assert cache.evict(slots) == (1, SLOT)
    assert cache.contents.state_counts().held == 1
    cache.leases.end(lease)
    assert cache.evict(slots) == (1, SLOT)
    assert cache.contents.state_counts().free == cache.contents.state_counts().total


def test_each_hold_counts(cache: L1Cache, space: SpaceRecord) -> None:
    (slot,) = store(cache, space, 1)
    leases = [find(cache, space, 1)[0] for _ in range(3)]
    cache.take_access_log()
    for lease in leases:
        assert cache.evict([slot]) == (0, 0)
        cache.leases.end(lease)
        cache.leases.end(lease)  # a second end does nothing
    assert cache.evict([slot]) == (1, SLOT)


def test_acquire_all_takes_all_or_none(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, 1, 2)
    lease = cache.leases.open(WORKER, None)
    assert cache.leases.acquire_all(lease, space, hashes(1, 3)) is None
    assert cache.contents.state_counts().held == 0
    assert cache.leases.acquire_all(lease, space, hashes(1, 2)) is not None
    assert cache.contents.state_counts().held == 2
    cache.leases.end(lease)


def test_temporary_objects_leave_with_their_last_reader(cache: L1Cache, space: SpaceRecord) -> None:
    write, _ = cache.reserve(WORKER, space, hashes(1), None)
    reader = cache.leases.open(LOOKUP, None)
    cache.publish(write, list(write.slots), [reader], temporary=True)
    second, slots = find(cache, space, 1)
    assert slots[0] >= 0
    cache.leases.end(reader)
    assert cache.objects == 1
    cache.leases.end(second)
    assert cache.objects == 0
    assert cache.contents.state_counts().free == cache.contents.state_counts().total


def test_a_temporary_object_whose_readers_are_gone_does_not_stay(cache: L1Cache, space: SpaceRecord) -> None:
    write, _ = cache.reserve(WORKER, space, hashes(1), None)
    reader = cache.leases.open(LOOKUP, None)
    cache.leases.end(reader)
    cache.publish(write, list(write.slots), [reader], temporary=True)
    assert cache.objects == 0


def test_an_overdue_lookup_is_released(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, 1)
    lease = cache.leases.open(LOOKUP, 10.0)
    cache.leases.acquire(lease, space, hashes(1))
    assert cache.leases.expire(9.9) == (0, 0)
    assert cache.leases.expire(10.0) == (1, 0)
    assert cache.contents.state_counts().held == 0
    assert lease.state is LeaseState.ENDED


def test_an_overdue_worker_keeps_its_slots_and_no_other_gets_them(cache: L1Cache, space: SpaceRecord) -> None:
    write, _ = cache.reserve(WORKER, space, hashes(1), 10.0)
    (late,) = write.slots
    assert cache.leases.expire(10.0) == (0, 1)
    assert cache.contents.state_counts().quarantined == 1
    assert not cache.publish(write, [late]), "it came too late"
    # Another worker can store the chunk meanwhile, in another slot, as often as there is space.
    others = store(cache, space, *range(1, 64))
    assert late not in others
    assert cache.reserve(OTHER, space, hashes(1000), None)[0].slots == []
    cache.leases.end_all(WORKER)
    assert cache.contents.state_counts().quarantined == 0
    assert cache.reserve(OTHER, space, hashes(1000), None)[0].slots == [late]


def test_an_overdue_reader_pins_its_slot_until_it_is_known_dead(cache: L1Cache, space: SpaceRecord) -> None:
    (slot,) = store(cache, space, 1)
    cache.take_access_log()
    lease = cache.leases.open(WORKER, 10.0)
    cache.leases.acquire_all(lease, space, hashes(1))
    cache.leases.expire(11.0)
    assert cache.contents.state_counts().quarantined == 1
    assert cache.evict([slot]) == (0, 0)
    cache.leases.end_all(WORKER)
    assert cache.evict([slot]) == (1, SLOT)


def test_a_slot_with_a_live_reader_is_held_not_quarantined(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, 1)
    late = cache.leases.open(WORKER, 10.0)
    cache.leases.acquire_all(late, space, hashes(1))
    live, _ = find(cache, space, 1)
    cache.leases.expire(11.0)
    assert (cache.contents.state_counts().held, cache.contents.state_counts().quarantined) == (1, 0)
    cache.leases.end(live)
    assert (cache.contents.state_counts().held, cache.contents.state_counts().quarantined) == (0, 1)
    cache.leases.end(late)


def test_what_is_half_written_is_discarded(cache: L1Cache, space: SpaceRecord) -> None:
    write, _ = cache.reserve(WORKER, space, hashes(1, 2), None)
    cache.leases.end(write)
    _, slots = find(cache, space, 1, 2)
    assert slots == [-1, -1]
    assert cache.contents.state_counts().free == cache.contents.state_counts().total


def test_room_that_runs_out_gives_a_prefix_and_asks_for_eviction(cache: L1Cache, space: SpaceRecord) -> None:
    asked: list[None] = []
    cache.call_on_pressure(lambda: asked.append(None), 2.0)
    lease, indexes = cache.reserve(WORKER, space, hashes(*range(100)), None)
    assert list(indexes) == list(range(64))
    assert asked
    assert cache.take_demand() == {SLOT: 36 * SLOT}
    cache.leases.end(lease)


def test_clear_leaves_what_is_held_and_force_lets_it_leave_later(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, 1, 2, 3)
    lease, _ = find(cache, space, 1)
    assert cache.contents.clear(force=False) == 2
    assert cache.contents.clear(force=True) == 1
    assert find(cache, space, 1)[1] == [-1]
    assert cache.contents.state_counts().held == 1
    cache.leases.end(lease)
    assert cache.contents.state_counts().free == cache.contents.state_counts().total


def test_a_victim_that_has_become_another_object_is_left_alone(cache: L1Cache, space: SpaceRecord) -> None:
    (slot,) = store(cache, space, 1)
    cache.take_access_log()
    cache.contents.clear(force=False)
    assert store(cache, space, 2) == [slot], "the slot was to be used again"
    assert cache.evict([slot]) == (0, 0), "the policy meant the object that is gone"
    cache.take_access_log()
    assert cache.evict([slot]) == (1, SLOT)


def test_the_access_log_has_everything_for_the_policy(cache: L1Cache, space: SpaceRecord) -> None:
    slots = store(cache, space, 1, 2)
    lease, hit = find(cache, space, 1)
    cache.log_access(hit, AccessFacts())
    cache.leases.end(lease)
    cache.contents.clear(force=False)
    entries = cache.take_access_log()
    assert [type(entry) for entry in entries] == [Inserted, Accessed, Removed]
    assert isinstance(entries[0], Inserted)
    assert entries[0].facts.keys == tuple(keys(space, 1, 2))
    assert entries[0].slots == slots
    assert entries[1].slots == slots[:1]
    assert sorted(entries[2].slots) == sorted(slots)


def test_a_slab_changes_hands_when_it_has_no_references(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, *range(64))
    big = cache.intern(KeySpace("b", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), 5 * PAYLOAD)
    lease, _ = cache.reserve(WORKER, big, hashes(1), None)
    assert lease.slots == []
    assert SlabMover(cache).make_space({cache.slot_bytes_for(5 * PAYLOAD): 5 * PAYLOAD}, {}, lambda wanted: []) > 0
    lease, _ = cache.reserve(WORKER, big, hashes(1), None)
    assert len(lease.slots) == 1
    cache.leases.end(lease)


class Interrupted:
    """A lock at whose `turn`-th acquisition something else comes first."""

    def __init__(self, lock: threading.Lock, turn: int, first: Callable[[], object]) -> None:
        self._lock, self._left, self._first = lock, turn, first

    def __enter__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._first()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("going_on", [False, True])
def test_slots_of_a_slab_that_has_moved_meanwhile_are_left_alone(
    cache: L1Cache, space: SpaceRecord, monkeypatch: pytest.MonkeyPatch, going_on: bool
) -> None:
    """While a stretch is emptied slice by slice, others empty the rest of it: it changes hands, and its slot numbers are
    those of new objects."""
    monkeypatch.setattr(slab_moves, "_EVICT_SLICE", 1)
    store(cache, space, *range(64))
    big = cache.intern(KeySpace("b", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), 5 * PAYLOAD)
    slot_bytes = cache.slot_bytes_for(5 * PAYLOAD)
    lock, stored = cache._index.lock, list[int]()

    def others() -> None:
        cache._index.lock = lock
        cache.contents.clear(force=False)
        assert cache.slabs.moving_bytes(slot_bytes) == 0
        stored.extend(store(cache, big, 0, 1))

    def interrupt() -> None:
        cache._index.lock = Interrupted(lock, 3, others)  # type: ignore[assignment]

    window = windows(*cache.slabs.pieces(), slot_bytes)[0]
    old = [slot for slab in window.slabs for slot in slab.slots]
    if going_on:
        lease, _ = find(cache, space, *range(64))
        assert cache.slabs.move(window, slot_bytes) == 0
        cache.leases.end(lease)
        interrupt()
        assert cache.slabs.continue_moves(slot_bytes) == 1
    else:
        interrupt()
        assert cache.slabs.move(window, slot_bytes) == 1
    assert set(stored) & set(old[1:]), "no number is used again: this tests nothing"
    lease, found = find(cache, big, 0, 1)
    assert found == stored
    cache.leases.end(lease)


def test_threads_leave_the_books_balanced(cache: L1Cache, space: SpaceRecord) -> None:
    def work(seed: int) -> None:
        for step in range(200):
            number = (seed * 31 + step * 7) % 40
            lease, indexes = cache.reserve(Owner(OwnerKind.WORKER, seed), space, hashes(number), None)
            if indexes:
                cache.publish(lease, list(lease.slots))
            else:
                cache.leases.end(lease)
            reader = cache.leases.open(Owner(OwnerKind.LOOKUP, (b"c", str(seed))), None)
            held = [slot for slot in cache.leases.acquire(reader, space, hashes(number)) if slot >= 0]
            if step % 5 == 0:
                cache.evict(held + list(range(10)))
            cache.leases.end(reader)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.contents.state_counts().held == 0
    assert cache.contents.state_counts().leases == 0


def test_end_all_ends_only_the_owners_leases(cache: L1Cache, space: SpaceRecord) -> None:
    first, _ = cache.reserve(WORKER, space, hashes(1), None)
    second, _ = cache.reserve(OTHER, space, hashes(2), None)
    assert cache.leases.end_all(WORKER) == 1
    assert first.state is LeaseState.ENDED
    assert second.state is LeaseState.ACTIVE
    cache.leases.end(second)


def test_buffers_are_exactly_as_long_as_the_object(cache: L1Cache) -> None:
    odd = cache.intern(KeySpace("odd", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), 1001)
    lease, _ = cache.reserve(WORKER, odd, hashes(1), None)
    (slot,) = lease.slots
    assert cache.buffer(slot).length == HEADER_BYTES + 1001
    assert cache.buffer(slot).offset % 4096 == 0
    assert cache.payload_offset(slot) == cache.buffer(slot).offset + HEADER_BYTES
    assert cache.key_of(slot).chunk_hash == hashes(1)[0]
    cache.leases.end(lease)


def test_a_hold_that_is_in_use_ends_with_its_use(cache: L1Cache, space: SpaceRecord) -> None:
    """The server copies into slots for a worker that is reaped meanwhile: they are not reused before the copy is over."""
    write, _ = cache.reserve(WORKER, space, hashes(1), None)
    (slot,) = write.slots
    with cache.leases.using(write) as alive:
        assert alive
        cache.leases.end_all(WORKER)
        others = store(cache, space, *range(1, 64))
        assert slot not in others
        assert cache.reserve(OTHER, space, hashes(1000), None)[0].slots == []
    assert not cache.publish(write, [slot])
    assert cache.reserve(OTHER, space, hashes(1000), None)[0].slots == [slot]
    with cache.leases.using(write) as alive:
        assert not alive


def test_a_size_larger_than_any_slab_gets_neighbouring_slabs(cache: L1Cache, space: SpaceRecord) -> None:
    store(cache, space, *range(64))
    huge = cache.intern(KeySpace("h", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), 30 * PAYLOAD)
    assert cache.reserve(WORKER, huge, hashes(1), None)[0].slots == []
    assert SlabMover(cache).make_space({cache.slot_bytes_for(30 * PAYLOAD): 30 * PAYLOAD}, {}, lambda wanted: []) > 0
    lease, _ = cache.reserve(WORKER, huge, hashes(1), None)
    assert len(lease.slots) == 1
    cache.leases.end(lease)
