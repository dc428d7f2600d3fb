"""Checks of what was published: what differs goes neither to readers nor to L2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.controllers.store_harness import PAYLOAD, SPACE, StoreHarness, chunks
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.model.object_header import HEADER_BYTES, digest


class CheckedStoreHarness(StoreHarness):
    """Publishes as the storage verbs do."""

    def __init__(self, adapters: int) -> None:
        super().__init__(StoreLimits(1 << 24), adapters)
        self.lines: list[str] = []
        self.checks = self.cache.checks = ReadChecks(self.cache, self.lines.append)
        publish = self.cache.publish

        def noted(lease: Lease, slots: tuple[int, ...], *rest: object) -> bool:
            self.checks.note(slots)
            return publish(lease, slots, *rest)  # type: ignore[arg-type]

        self.cache.publish = noted  # type: ignore[method-assign, assignment]

    def hold(self, hashes: list[bytes]) -> tuple[Lease, list[int]]:
        lease = self.cache.leases.open(Owner(OwnerKind.WORKER, 2), None)
        slots = self.cache.leases.acquire_all(lease, self.cache.intern(SPACE, PAYLOAD), hashes)
        assert slots is not None
        return lease, slots

    def overwrite(self, chunk: bytes) -> None:
        lease, (slot,) = self.hold([chunk])
        self.cache.buffer(slot).view[HEADER_BYTES + 5] ^= 1
        self.cache.leases.end(lease)


@pytest.fixture
def harness() -> Iterator[CheckedStoreHarness]:
    harness = CheckedStoreHarness(adapters=2)
    yield harness
    harness.close()


def test_what_was_overwritten_goes_to_no_adapter_and_the_rest_does(harness: CheckedStoreHarness) -> None:
    harness.put(chunks(4))
    harness.overwrite(chunks(4)[2])
    for number in (0, 1):
        harness.settle(number)
        assert harness.stored(chunks(4), number) == [0, 1, 3]
        assert harness.snapshot(number).failed_by_outcome == {"damaged": 1}
    assert harness.checks.overwritten == 1
    assert harness.cache.objects == 3
    assert harness.cache.contents.state_counts().held == 0
    assert harness.store.drain(0)


def test_a_job_of_which_nothing_is_left_is_not_handed_over(harness: CheckedStoreHarness) -> None:
    harness.put(chunks(1))
    harness.overwrite(chunks(1)[0])
    harness.turn()
    assert [len(adapter.waiting) for adapter in harness.adapters] == [0, 0]
    assert [harness.snapshot(number).failed for number in (0, 1)] == [1, 1]
    assert harness.cache.contents.state_counts().held == 0
    harness.put(chunks(1))
    for number in (0, 1):
        harness.settle(number)
        assert harness.stored(chunks(1), number) == [0], "stored anew, it goes there"


def test_an_object_is_dropped_once_however_many_readers_find_it(harness: CheckedStoreHarness) -> None:
    unpinned: list[int] = []
    harness.checks.unpin = unpinned.extend
    harness.put(chunks(2))
    for number in (0, 1):
        harness.settle(number)
    first, slots = harness.hold(chunks(2))
    second, _ = harness.hold(chunks(2))
    assert harness.checks.changed(slots) == []
    harness.cache.buffer(slots[1]).view[HEADER_BYTES] ^= 1
    assert harness.checks.changed(slots) == [slots[1]]
    harness.put(chunks(2)[1:])  # the right one, in another slot
    assert harness.checks.changed(slots) == [slots[1]]
    assert (harness.checks.overwritten, unpinned, len(harness.lines)) == (1, [slots[1]], 1)
    third, anew = harness.hold(chunks(2))
    assert anew[1] != slots[1]
    assert harness.checks.changed(anew) == []
    for lease in (first, second, third):
        harness.cache.leases.end(lease)
    for number in (0, 1):
        harness.settle(number)


def test_a_slot_that_is_published_again_has_its_new_digest(harness: CheckedStoreHarness) -> None:
    slots = []
    for prompt in (1, 2):
        harness.put(chunks(1, prompt))
        for number in (0, 1):
            harness.settle(number)
        lease, (slot,) = harness.hold(chunks(1, prompt))
        assert harness.checks.changed([slot]) == []
        assert harness.checks.noted(slot) == digest(chunks(1, prompt)[0] * (PAYLOAD // 32))
        harness.cache.leases.end(lease)
        harness.cache.contents.clear(force=True)
        slots.append(slot)
    assert slots[0] == slots[1]
