"""An altered object is a miss, whatever was altered."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig

DONE, MISSING, DAMAGED, FOREIGN = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED, Outcome.FOREIGN
REFUSALS: Final = (Outcome.REJECTED, DAMAGED, FOREIGN)
"""An adapter that looks at what it is given to store may refuse it at once."""

Change = Callable[[Rig, ObjectKey], BorrowedBuffer]


def _flipped(at: int) -> Change:
    def flip(rig: Rig, key: ObjectKey) -> BorrowedBuffer:
        _, buffer = rig.whole(key)
        buffer.view[at] ^= 0x10
        return buffer

    return flip


def _truncated(rig: Rig, key: ObjectKey) -> BorrowedBuffer:
    """The right header, and half of the payload that it speaks of."""
    _, buffer = rig.whole(key)
    return buffer._replace(length=HEADER_BYTES + 5_000)


def _half_written(rig: Rig, key: ObjectKey) -> BorrowedBuffer:
    _, buffer = rig.whole(key)
    buffer.view[OBJECT_BYTES // 2 :] = bytes(OBJECT_BYTES - OBJECT_BYTES // 2)
    return buffer


def _of_another_key(rig: Rig, key: ObjectKey) -> BorrowedBuffer:
    _, buffer = rig.whole(rig.key(1000))
    return buffer


def _not_ours(rig: Rig, key: ObjectKey) -> BorrowedBuffer:
    buffer = rig.memory.lend(OBJECT_BYTES)
    buffer.view[:] = (b"Dear diary, " * 2_000)[:OBJECT_BYTES]
    return buffer


CHANGES: Final = MappingProxyType(
    {
        "a bit of the header": _flipped(30),
        "a bit of the key": _flipped(90),
        "a bit of the padding": _flipped(2_000),
        "a bit of the header's digest": _flipped(HEADER_BYTES - 1),
        "the first bit of the payload": _flipped(HEADER_BYTES),
        "the last byte of the payload": _flipped(OBJECT_BYTES - 1),
        "truncated": _truncated,
        "half written": _half_written,
        "of another key": _of_another_key,
        "not ours": _not_ours,
    }
)


class Damage(L2Fixtures):
    @pytest.mark.parametrize("change", CHANGES)
    def test_an_altered_object_is_never_a_hit_and_does_not_stand_in_the_way(self, rig: Rig, change: str) -> None:
        key = rig.key(0)
        (stored,) = rig.driver.store((key, CHANGES[change](rig, key)))
        if stored is not DONE:
            assert stored in REFUSALS
            assert rig.driver.has(key) == (MISSING,)
            return
        item = rig.empty(key)
        (outcome,) = rig.driver.verified_load(item)
        if outcome is FOREIGN:
            rig.unremovable.append(key)
        assert outcome in (DAMAGED, FOREIGN)
        _assert_refused(rig, key, outcome)

    def test_an_altered_object_costs_its_neighbours_nothing(self, rig: Rig) -> None:
        keys = rig.put(4)
        hurt = rig.key(10)
        if rig.driver.store((hurt, _half_written(rig, hurt))) != (DONE,):
            return
        outcomes = rig.driver.verified_load(*map(rig.empty, [*keys[:2], hurt, *keys[2:]]))
        assert outcomes == (DONE, DONE, DAMAGED, DONE, DONE)
        assert rig.driver.has(*keys, hurt) == (DONE,) * 4 + (MISSING,)

    def test_what_the_adapter_verifies_it_refuses_by_itself(self, rig: Rig) -> None:
        rig.require(Capability.VERIFIES)
        for number, change in enumerate(CHANGES.values()):
            key = rig.key(number)
            if rig.driver.store((key, change(rig, key))) != (DONE,):
                continue
            _, buffer = item = rig.empty(key)
            (outcome,) = rig.driver.load(item)
            assert outcome in (DAMAGED, FOREIGN), f"loaded is {outcome}, and the check says {check(buffer.view, key)}"
            if outcome is FOREIGN:
                rig.unremovable.append(key)


def _assert_refused(rig: Rig, key: ObjectKey, outcome: Outcome) -> None:
    """What failed the check is not offered; damaged, it makes room for the right object; foreign, it may stay."""
    assert rig.driver.has(key) == (MISSING,)
    assert rig.driver.verified_load(rig.empty(key))[0] in (MISSING, DAMAGED, FOREIGN)
    if rig.is_read_only:
        return
    if outcome is DAMAGED and Capability.DELETE in rig.capabilities:
        rig.store_anew(key)
        rig.assert_whole(key)
        return
    (stored,) = rig.driver.store(rig.whole(key))
    assert stored in (DONE, Outcome.REJECTED)
    if stored is DONE:
        rig.assert_whole(key)
