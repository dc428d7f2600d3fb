"""A backend without free space is distinguished from one that loses objects."""

from __future__ import annotations

import pytest

from lmcache_devkit import BorrowedMemory, OpenableOffer
from lmcache_devkit.l2.rig import Rig
from lmcache_devkit.offer_under_test import installed_offer


def test_an_object_that_is_rejected_is_named_with_its_length_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    under_test = OpenableOffer(installed_offer("l2_adapter", "memory"), {"max_size_gb": 50_000 / 2**30})
    rig = Rig(under_test, BorrowedMemory(1 << 20), 10)
    monkeypatch.setattr(rig, "require_room", lambda wanted_bytes: None)  # as where the adapter does not know its room
    try:
        with pytest.raises(
            AssertionError, match=r"rejects an object of 104096 bytes: give it room for 1 of them, or say"
        ):
            rig.put(1, payload_bytes=100_000)
    finally:
        rig.finish()
