"""The same on the medium itself, behind the adapter's back; needs the fixture `media`."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.media import Media
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig

DONE, MISSING, DAMAGED, FOREIGN = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED, Outcome.FOREIGN
LETTER: Final = (b"Dear diary, " * 2_000)[:OBJECT_BYTES]

FAULTS: Final = MappingProxyType[str, Callable[[Media, ObjectKey], None]](
    {
        "emptied": lambda media, key: media.truncate(key, 0),
        "cut in the header": lambda media, key: media.truncate(key, 100),
        "cut behind the header": lambda media, key: media.truncate(key, HEADER_BYTES),
        "one byte short": lambda media, key: media.truncate(key, OBJECT_BYTES - 1),
        "one byte long": lambda media, key: media.extend(key, b"\0"),
        "a bit of the header": lambda media, key: media.flip(key, 30),
        "a bit of the padding": lambda media, key: media.flip(key, 2_000),
        "the first bit of the payload": lambda media, key: media.flip(key, HEADER_BYTES),
        "the last byte of the payload": lambda media, key: media.flip(key, OBJECT_BYTES - 1),
    }
)


class MediaDamage(L2Fixtures):
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_of_the_medium_is_a_miss_and_makes_room(self, rig: Rig, media: Media | None, fault: str) -> None:
        media = _needed(media)
        hurt, other = rig.put(2)
        FAULTS[fault](media, hurt)
        try:
            (outcome,) = rig.driver.verified_load(rig.empty(hurt))
            # what has nothing to move aside may take an empty place for one without an object
            assert outcome is DAMAGED or (rig.is_read_only and fault == "emptied" and outcome is MISSING)
            assert rig.driver.has(hurt, other) == (MISSING, DONE)
            rig.assert_whole(other)
            if Capability.DELETE in rig.capabilities:
                rig.store_anew(hurt)
                rig.assert_whole(hurt)
        except AssertionError:
            media.remove(hurt)
            raise

    def test_two_objects_that_changed_places_are_not_hits(self, rig: Rig, media: Media | None) -> None:
        media = _needed(media)
        keys = rig.put(2)
        media.swap(*keys)
        try:
            assert rig.driver.verified_load(*map(rig.empty, keys)) == (FOREIGN, FOREIGN)
            assert rig.driver.has(*keys) == (MISSING, MISSING)
        finally:
            for key in keys:
                media.remove(key)

    def test_what_is_foreign_is_neither_served_nor_replaced_nor_deleted(self, rig: Rig, media: Media | None) -> None:
        media = _needed(media)
        (key,) = rig.put(1)
        media.write(key, LETTER)
        try:
            assert rig.driver.verified_load(rig.empty(key)) == (FOREIGN,)
            assert rig.driver.has(key) == (MISSING,)
            assert rig.driver.own_store(rig.whole(key)) == (Outcome.REJECTED,)
            if Capability.DELETE in rig.capabilities:
                assert rig.driver.delete(key) == (MISSING,)
            assert media.read(key) == LETTER
        finally:
            media.remove(key)

    def test_what_vanished_is_missing_and_can_be_stored_again(self, rig: Rig, media: Media | None) -> None:
        media = _needed(media)
        gone, other = rig.put(2)
        media.remove(gone)
        assert rig.driver.load(rig.empty(gone)) == (MISSING,)
        assert rig.driver.store(rig.whole(gone)) == (DONE,)
        rig.assert_whole(gone, other)

    def test_what_is_stored_is_the_object_and_nothing_else(self, rig: Rig, media: Media | None) -> None:
        rig.require_stores()
        media = _needed(media)
        key = rig.key(0)
        _, buffer = item = rig.whole(key)
        assert rig.driver.store(item) == (DONE,)
        assert media.read(key) == bytes(buffer.view)


def _needed(media: Media | None) -> Media:
    if media is None:
        pytest.skip("the fixture media gives no way to the bytes behind the adapter")
    return media
