"""Objects come back into buffers that are longer than they are, where that is declared."""

from __future__ import annotations

from typing import Final

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import ALIGN_BYTES, UNWRITTEN
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import PAYLOAD_BYTES, Rig, assert_right

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED
SIZES: Final = (1, 511, 4_096, PAYLOAD_BYTES)


class AnyLength(L2Fixtures):
    @pytest.mark.parametrize("longer", [1, 511, 4_096, 100_001])
    def test_a_buffer_may_be_longer_than_the_object(self, rig: Rig, longer: int) -> None:
        rig.require(Capability.ANY_LENGTH)
        for number, payload_bytes in enumerate(SIZES):
            (key,) = rig.put(1, first=number, payload_bytes=payload_bytes)
            buffer = _at_most(rig, payload_bytes + longer)
            assert rig.driver.load((key, buffer)) == (DONE,)
            assert check(buffer.view, key, at_most=True).outcome is DONE
            assert_right(key, buffer._replace(length=HEADER_BYTES + payload_bytes))

    def test_a_buffer_of_just_its_length_is_long_enough(self, rig: Rig) -> None:
        rig.require(Capability.ANY_LENGTH)
        (key,) = rig.put(1)
        buffer = _at_most(rig, PAYLOAD_BYTES)
        assert rig.driver.load((key, buffer)) == (DONE,)
        assert_right(key, buffer)

    @pytest.mark.parametrize("shorter", [1, 4_096, PAYLOAD_BYTES])
    def test_an_object_that_is_longer_than_the_buffer_is_damaged_and_nothing_behind_it_is_written(
        self, rig: Rig, shorter: int
    ) -> None:
        rig.require(Capability.ANY_LENGTH)
        (key,) = rig.put(1)
        buffer = _at_most(rig, PAYLOAD_BYTES - shorter)
        behind = rig.memory.lend(2 * ALIGN_BYTES)
        assert rig.driver.load((key, buffer)) == (DAMAGED,)
        assert behind.view == UNWRITTEN * behind.length

    def test_what_is_not_there_is_missing_in_a_longer_buffer_too(self, rig: Rig) -> None:
        rig.require(Capability.ANY_LENGTH)
        assert rig.driver.load((rig.key(7), _at_most(rig, PAYLOAD_BYTES))) == (MISSING,)

    def test_objects_of_several_lengths_come_in_one_batch(self, rig: Rig) -> None:
        rig.require(Capability.ANY_LENGTH)
        items: list[tuple[ObjectKey, BorrowedBuffer]] = []
        for number, payload_bytes in enumerate(SIZES):
            (key,) = rig.put(1, first=number, payload_bytes=payload_bytes)
            items.append((key, _at_most(rig, PAYLOAD_BYTES + 1)))
        assert rig.driver.load(*items) == (DONE,) * len(SIZES)
        for (key, buffer), payload_bytes in zip(items, SIZES, strict=True):
            assert_right(key, buffer._replace(length=HEADER_BYTES + payload_bytes))


def _at_most(rig: Rig, payload_bytes: int) -> BorrowedBuffer:
    """A buffer for an object with so much payload or less."""
    return rig.memory.lend(HEADER_BYTES + payload_bytes)._replace(at_most=True)
