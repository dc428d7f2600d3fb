"""What is stored comes back, byte for byte."""

from __future__ import annotations

from typing import Final

import pytest

from lmcache_client.layout import ITEM_BYTES, ObjectLayout
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, payload_of
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig

DONE, MISSING = Outcome.DONE, Outcome.MISSING
SIZES: Final = (1, 2, 511, 512, 513, 4095, 4096, 4097, 12_289, 65_535, 65_537, 2**20 - 1, 2**20, 2**20 + 1)
LARGE_SIZES: Final = (8 * 2**20 + 1, 64 * 2**20)
LAYOUTS: Final = (
    ObjectLayout(2, 4, 16, 64, "bfloat16"),
    ObjectLayout(1, 3, 16, 40, "float16"),
    ObjectLayout(1, 1, 1, 1, "uint8"),
    ObjectLayout(2, 5, 7, 3, "float8_e4m3fn"),
)


class RoundTrips(L2Fixtures):
    def test_what_was_stored_is_found_and_comes_back_byte_for_byte(self, rig: Rig) -> None:
        keys = rig.put(5)
        assert rig.driver.has(*keys) == (DONE,) * 5
        rig.assert_whole(*keys)

    @pytest.mark.parametrize("payload_bytes", SIZES)
    def test_a_payload_of_any_size_comes_back(self, rig: Rig, payload_bytes: int) -> None:
        _skip_beyond(rig.driver.adapter, payload_bytes)
        keys = rig.put(2, payload_bytes=payload_bytes)
        rig.assert_whole(*keys, payload_bytes=payload_bytes)

    @pytest.mark.parametrize("payload_bytes", LARGE_SIZES)
    def test_a_large_payload_comes_back(self, rig: Rig, payload_bytes: int) -> None:
        if payload_bytes > self.payload_bytes_max:
            pytest.skip(f"payload_bytes_max of the suite is {self.payload_bytes_max}")
        _skip_beyond(rig.driver.adapter, payload_bytes)
        rig.reopen(BorrowedMemory(2 * payload_bytes + 4 * HEADER_BYTES))
        rig.assert_whole(*rig.put(1, payload_bytes=payload_bytes), payload_bytes=payload_bytes)

    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "x".join(map(str, layout.shape)))
    def test_every_tensor_of_an_object_comes_back(self, rig: Rig, layout: ObjectLayout) -> None:
        key = rig.key(0, layout=layout.fingerprint)
        plane = layout.slots * layout.hidden * ITEM_BYTES[layout.dtype]
        planes = [payload_of(number, plane) for number in range(layout.kv_axis * layout.layers)]
        assert rig.driver.store((key, rig.memory.sealed(key, b"".join(planes)))) == (DONE,)
        _, buffer = item = rig.empty(key, layout.payload_bytes)
        assert rig.driver.load(item) == (DONE,)
        assert check(buffer.view, key).outcome is DONE
        for number, tensor in enumerate(planes):
            at = HEADER_BYTES + number * plane
            assert buffer.view[at : at + plane] == tensor, f"tensor {number} of {len(planes)}"

    def test_what_was_not_stored_is_missing(self, rig: Rig) -> None:
        key = rig.key(1)
        assert rig.driver.has(key) == (MISSING,)
        assert rig.driver.load(rig.empty(key)) == (MISSING,)

    def test_storing_again_changes_nothing(self, rig: Rig) -> None:
        rig.require_stores()
        (key,) = rig.put(1)
        usage = rig.driver.adapter.usage()
        assert rig.driver.store(rig.whole(key)) == (DONE,)
        assert rig.driver.adapter.usage() == usage
        rig.assert_whole(key)

    def test_loading_twice_gives_the_same(self, rig: Rig) -> None:
        keys = rig.put(2)
        rig.assert_whole(*keys)
        rig.assert_whole(*keys)

    def test_a_buffer_of_another_length_is_never_filled_with_success(self, rig: Rig) -> None:
        for number, length in enumerate((OBJECT_BYTES - 1, OBJECT_BYTES + 1, HEADER_BYTES)):
            (key,) = rig.put(1, first=number)
            (outcome,) = rig.driver.load((key, rig.memory.lend(length)))
            assert outcome is Outcome.DAMAGED, (
                f"an object of {OBJECT_BYTES} bytes was loaded into a buffer of {length} bytes with {outcome.name}; "
                "expected is DAMAGED"
            )

    def test_an_object_beyond_the_declared_maximum_is_rejected(self, rig: Rig) -> None:
        rig.require_stores()
        most = largest_object_bytes(rig.driver.adapter)
        if most is None or most > 2 * self.payload_bytes_max:
            pytest.skip(f"the adapter's largest object is {most or 'of any size'}")
        memory = BorrowedMemory(most + 2 * HEADER_BYTES)
        driver = rig.reopen(memory)
        key = rig.key(0)
        assert driver.store((key, memory.sealed(key, bytes(most - HEADER_BYTES + 1)))) == (Outcome.REJECTED,)
        assert driver.has(key) == (MISSING,)


def largest_object_bytes(adapter: L2Adapter) -> int | None:
    """What the adapter takes at most, header page included; None: anything."""
    most = adapter.max_object_bytes
    assert most is None or isinstance(most, int)
    return most


def _skip_beyond(adapter: L2Adapter, payload_bytes: int) -> None:
    most = largest_object_bytes(adapter)
    if most is not None and HEADER_BYTES + payload_bytes > most:
        pytest.skip(f"the adapter's largest object has {most} bytes")
