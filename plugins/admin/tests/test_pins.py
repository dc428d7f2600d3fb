"""Pins keep chunks in L1, within their bound, until they are removed."""

from __future__ import annotations

import pytest

from core.tests.storage.storage_harness import CHUNKS, PAYLOAD, SLOT, StorageHarness, open_storage, space
from lmcache_admin import pins as pins_module
from lmcache_admin.pins import Pinned, PinRefusedError, Pins, PinSubject
from lmcache_client.errors import ConfigError
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.cache_control import AddressedChunks
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.l1.leases import Lease, Owner
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.l1_audit import audit
from plugins.admin.tests.operator_parts import cache_of, listing, pins_of

SUBJECT = PinSubject("m", "")


def chunks(*wanted: bytes, ranks: tuple[int, ...] = (0,)) -> AddressedChunks:
    return AddressedChunks(tuple(Shard((space(rank),)) for rank in ranks), wanted, is_prompt=True)


def pin(
    harness: StorageHarness, name: str, *wanted: bytes, ttl: float | None = None, ranks: tuple[int, ...] = (0,)
) -> Pinned:
    return pins_of(harness).pin(name, SUBJECT, ttl, chunks(*wanted, ranks=ranks))


def pinned_bytes(harness: StorageHarness) -> int:
    totals = pins_of(harness).totals()
    assert totals.size_bytes == totals.objects * SLOT
    return totals.size_bytes


def key(chunk: bytes) -> ObjectKey:
    return ObjectKey(space().space, chunk)


def fill(harness: StorageHarness, *wanted: bytes, rank: int = 0) -> None:
    harness.put(*wanted, into=space(rank))
    harness.settle()


def test_what_is_pinned_is_neither_evicted_nor_cleared(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS)
    assert pin(harness, "p", *CHUNKS[:3]) == Pinned(3, 3)
    assert pinned_bytes(harness) == 3 * SLOT
    assert len(harness.cache.slabs.fixed_slots()) == 3, "slabs with these do not move"
    eviction = EvictionController(harness.cache, LeastRecentlyUsed(), 0.01, 1.0, harness.events)
    eviction.cycle()
    assert (harness.cache.contents.state_counts().held, harness.cache.contents.state_counts().cached) == (3, 0)
    assert harness.storage.clear(force=False) == 0
    assert pins_of(harness).unpin("p") is not None
    eviction.cycle()
    assert harness.cache.contents.state_counts().used_bytes == 0
    eviction._wakes.close()


def test_a_pin_does_not_keep_what_was_overwritten(harness: StorageHarness) -> None:
    checks = harness.cache.checks = ReadChecks(harness.cache, print)
    checks.unpin = pins_of(harness).release
    fill(harness, *CHUNKS[:2])
    pin(harness, "p", *CHUNKS[:2])
    references = harness.storage.acquire(1, "r", space(), CHUNKS[:2], 0)
    assert references is not None
    harness.storage.payload(references.slots[1])[0] ^= 1
    harness.storage.release(references)
    assert harness.storage.acquire(1, "r", space(), CHUNKS[:2], 0) is None
    assert pinned_bytes(harness) == SLOT
    assert harness.cache.contents.state_counts().used_bytes == SLOT, "its slot is free"
    audit(harness.cache)


def test_a_shard_that_is_not_there_is_reported(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:3])
    fill(harness, CHUNKS[1], rank=1)
    assert pin(harness, "p", *CHUNKS[:4], ranks=(0, 1)) == Pinned(chunks=1, objects=4)


def test_nothing_there_makes_no_pin(harness: StorageHarness) -> None:
    assert pin(harness, "p", CHUNKS[0]) == Pinned(0, 0)
    assert pins_of(harness).everything() == []


def test_a_name_is_added_to_and_lives_anew(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:4])
    pin(harness, "p", *CHUNKS[:2], ttl=10.0)
    harness.clock.advance(6.0)
    assert pin(harness, "p", *CHUNKS[1:4], ttl=10.0).objects == 3
    (view,) = pins_of(harness).everything()
    assert (view.name, view.subject, view.objects, view.size_bytes, view.expires_in_seconds) == (
        "p", SUBJECT, 4, 4 * SLOT, 10.0,
    )  # fmt: skip
    harness.pass_time(6.0)
    assert harness.held() == 4
    harness.pass_time(5.0)
    assert (harness.held(), pinned_bytes(harness), pins_of(harness).everything()) == (0, 0, [])


def test_a_name_is_of_one_tenant(harness: StorageHarness) -> None:
    fill(harness, CHUNKS[0])
    pin(harness, "p", CHUNKS[0])
    with pytest.raises(PinRefusedError, match="pin 'p' holds chunks of another model or cache salt"):
        pins_of(harness).pin("p", PinSubject("m", "alice"), None, chunks(CHUNKS[0]))
    assert harness.held() == 1


def test_what_two_pins_hold_counts_once_and_stays_for_the_other(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:3])
    pin(harness, "a", *CHUNKS[:2])
    pin(harness, "b", *CHUNKS[1:3])
    assert pinned_bytes(harness) == 3 * SLOT
    pins_of(harness).unpin("a")
    assert (pinned_bytes(harness), harness.held()) == (2 * SLOT, 2)
    pins_of(harness).unpin("b")
    assert (pinned_bytes(harness), harness.held()) == (0, 0)


def test_a_chunk_that_is_named_twice_is_held_once(harness: StorageHarness) -> None:
    fill(harness, CHUNKS[0])
    assert pin(harness, "p", CHUNKS[0], CHUNKS[0]) == Pinned(1, 1)
    assert pin(harness, "p", CHUNKS[0], CHUNKS[0]) == Pinned(1, 1)
    (slot,) = (view.slot for view in harness.cache.contents.views(0, harness.cache.contents.slot_numbers))
    assert harness.cache._table.holds(slot) == 1
    pins_of(harness).unpin("p")
    assert harness.held() == 0


def test_no_more_is_pinned_than_may_be() -> None:
    with open_storage(StorageHarness(pin_slots=3)) as harness:
        fill(harness, *CHUNKS)
        pin(harness, "p", *CHUNKS[:2])
        with pytest.raises(PinRefusedError, match=f"{2 * SLOT} of at most {3 * SLOT} bytes of L1 are pinned"):
            pin(harness, "q", *CHUNKS[1:5])
        assert (pinned_bytes(harness), harness.held()) == (2 * SLOT, 2)
        assert [view.name for view in pins_of(harness).everything()] == ["p"]
        assert pin(harness, "q", *CHUNKS[1:3]).objects == 2, "what is pinned already is nothing more"
        with pytest.raises(
            PinRefusedError, match="unpin something, or start the server with a larger --l1-pin-max-ratio"
        ):
            pin(harness, "p", *CHUNKS[:4], ttl=1.0)
        assert (pinned_bytes(harness), harness.held()) == (3 * SLOT, 3)
        assert [view.expires_in_seconds for view in pins_of(harness).everything()] == [None, None]
        pins_of(harness).clear()


def test_there_is_a_most_of_names(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "PINS_MAX", 2)
    fill(harness, *CHUNKS[:3])
    for name in ("a", "b", "a"):
        pin(harness, name, CHUNKS[0])
    with pytest.raises(PinRefusedError, match="there are 2 pins, which is the most"):
        pin(harness, "c", CHUNKS[0])
    pins_of(harness).clear()


def test_what_is_too_much_is_not_held_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "SLICE", 2)
    with open_storage(StorageHarness(pin_slots=3)) as harness:
        fill(harness, *CHUNKS)
        opened: list[Lease] = []
        open_lease = harness.cache.leases.open

        def count(owner: Owner, deadline: float | None) -> Lease:
            opened.append(open_lease(owner, deadline))
            return opened[-1]

        monkeypatch.setattr(harness.cache.leases, "open", count)
        with pytest.raises(PinRefusedError):
            pin(harness, "p", *CHUNKS)
        assert len(opened) == 2, "four chunks are more than three"


def test_a_pin_that_is_emptied_by_force_leaves_no_lease(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:2])
    pin(harness, "p", *CHUNKS[:2])
    assert listing(harness).remove([key(chunk) for chunk in CHUNKS[:2]], force=True).removed == 2
    assert (harness.cache.contents.state_counts().leases, pins_of(harness).everything()) == (0, [])


def test_clear_by_force_and_a_forced_removal_end_pins(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:3])
    pin(harness, "p", *CHUNKS[:3])
    removal = listing(harness).remove([key(CHUNKS[0]), key(CHUNKS[1])], force=False)
    assert (removal.removed, removal.skipped, removal.missing) == (0, 2, 0)
    removal = listing(harness).remove([key(CHUNKS[0]), key(CHUNKS[7])], force=True)
    assert (removal.removed, removal.skipped, removal.missing) == (1, 0, 1)
    assert (pinned_bytes(harness), harness.held(), harness.cache.objects) == (2 * SLOT, 2, 2)
    assert harness.storage.clear(force=True) == 2
    assert (harness.held(), pins_of(harness).everything()) == (0, [])


def test_what_was_dropped_by_force_a_moment_ago_is_not_pinned(harness: StorageHarness) -> None:
    """A prefetch still holds it, and pins it now."""
    fill(harness, *CHUNKS[:2])
    pins = pins_of(harness)
    load = cache_of(harness).load("test")
    slots = harness.cache.leases.acquire(load._lease, harness.cache.intern(*space()), CHUNKS[:2])
    assert listing(harness).remove([key(CHUNKS[0])], force=True).removed == 1
    filling = pins.open("p", SUBJECT, None)
    assert pins.share(filling, load, slots) == 2
    pins.close(filling)
    assert [view.objects for view in pins.everything()] == [1]
    load.end()
    assert harness.held() == 1
    pins.unpin("p")


def test_many_chunks_are_held_by_several_leases(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "SLICE", 3)
    fill(harness, *CHUNKS)
    assert pin(harness, "p", *CHUNKS) == Pinned(8, 8)
    assert harness.cache.contents.state_counts().leases == 3
    assert pins_of(harness).unpin("p") is not None
    assert pins_of(harness).unpin("p") is None
    assert harness.cache.contents.state_counts().leases == 0


def test_a_worker_reads_what_is_pinned(harness: StorageHarness) -> None:
    fill(harness, CHUNKS[0])
    pin(harness, "p", CHUNKS[0])
    harness.ask(CHUNKS[0])
    assert harness.answer() == 1
    references = harness.storage.acquire(7, "r", space(), [CHUNKS[0]], 0)
    assert references is not None
    assert bytes(harness.storage.payload(references.slots[0])) == CHUNKS[0] * (PAYLOAD // 32)
    harness.storage.release(references)
    harness.storage.end_lookup(b"c", "r")
    assert harness.held() == 1
    pins_of(harness).unpin("p")


def test_a_lease_is_shared_with_a_pin_only_while_there_is_one(harness: StorageHarness) -> None:
    fill(harness, CHUNKS[0])
    pins = pins_of(harness)
    filling, gone = (pins.open(name, SUBJECT, None) for name in ("p", "gone"))
    load = cache_of(harness).load("test")
    slots = harness.cache.leases.acquire(load._lease, harness.cache.intern(*space()), [CHUNKS[0]])
    pins.unpin("gone")
    pin(harness, "gone", CHUNKS[0])
    assert pins.share(filling, load, slots) == 1
    assert pins.share(gone, load, slots) is None, "another one has its name now"
    pins.close(gone)
    pins.unpin("gone")
    load.end()
    assert harness.held() == 1
    pins.unpin("p")
    pins.close(filling)
    assert harness.cache.contents.state_counts().leases == 0


def test_pinning_the_same_again_and_again_keeps_nothing_more(harness: StorageHarness) -> None:
    fill(harness, *CHUNKS[:4])
    pin(harness, "p", *CHUNKS[:4])
    leases = harness.cache.contents.state_counts().leases
    for _ in range(5):
        pin(harness, "p", *CHUNKS[:4], ranks=(0, 1))
    assert harness.cache.contents.state_counts().leases == leases
    listing(harness).remove([key(chunk) for chunk in CHUNKS[:2]], force=True)
    pin(harness, "p", *CHUNKS[:4])
    assert harness.cache.contents.state_counts().leases == leases
    pins_of(harness).unpin("p")
    assert harness.cache.contents.state_counts().leases == 0


def test_a_pin_that_is_renewed_at_its_last_moment_stays(harness: StorageHarness) -> None:
    """The renewal comes after the reaper has seen that the pin's time is over, and before it ends it."""
    fill(harness, *CHUNKS[:2])
    pin(harness, "late", CHUNKS[0], ttl=5.0)
    pin(harness, "p", CHUNKS[1], ttl=5.0)
    harness.clock.advance(6.0)
    pins, overtaken = pins_of(harness), list[bool]()

    class Renews:
        """The lock of the pins; the thread that releases it for the first time is overtaken."""

        def __init__(self) -> None:
            self.lock = pins._lock

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            if not overtaken:
                overtaken.append(True)
                pin(harness, "p", CHUNKS[1], ttl=5.0)

    pins._lock = Renews()  # type: ignore[assignment]
    pins.expire()
    assert [view.name for view in pins.everything()] == ["p"]
    assert harness.held() == 1
    pins.unpin("p")


def test_a_pin_that_is_still_to_be_filled_outlives_one_who_had_nothing_for_it(harness: StorageHarness) -> None:
    fill(harness, CHUNKS[0])
    pins = pins_of(harness)
    filling = pins.open("p", SUBJECT, None)
    assert pin(harness, "p", CHUNKS[7]) == Pinned(0, 0)
    load = cache_of(harness).load("test")
    slots = harness.cache.leases.acquire(load._lease, harness.cache.intern(*space()), [CHUNKS[0]])
    assert pins.share(filling, load, slots) == 1
    pins.close(filling)
    listing(harness).remove([key(CHUNKS[0])], force=True)
    assert pins.everything() == []
    load.end()


def test_what_is_held_no_more_is_not_shared(harness: StorageHarness) -> None:
    """Its slot may not even be there."""
    fill(harness, CHUNKS[0])
    pins = pins_of(harness)
    filling = pins.open("p", SUBJECT, None)
    load = cache_of(harness).load("test")
    slots = harness.cache.leases.acquire(load._lease, harness.cache.intern(*space()), [CHUNKS[0]])
    load.end()
    assert pins.share(filling, load, slots) == 0
    assert harness.cache.contents.state_counts().leases == 0
    pins.close(filling)
    assert pins.everything() == []


def test_a_server_has_one_owner_of_pins(harness: StorageHarness) -> None:
    """The objects of the other one would not be released when they are dropped."""
    pins = pins_of(harness)
    with pytest.raises(ConfigError, match="another service pins objects already; leave one of them out"):
        Pins(cache_of(harness), harness.clock)
    assert harness.storage.pins is pins
