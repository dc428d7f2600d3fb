from __future__ import annotations

import pytest
from pydantic import ValidationError

from lmcache_core import BorrowedBuffer, Outcome
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put


def test_beyond_its_capacity_it_rejects_and_takes_again_after_a_delete() -> None:
    memory = BorrowedMemory()
    settings = MemorySettings(max_size_gb=3 * OBJECT_BYTES / 2**30)
    adapter = MemoryAdapter(settings, adapter_context(memory))
    driver = L2Driver(adapter)
    keys = put(driver, memory, 3)
    late = object_key(9)
    buffer = memory.sealed(late, payload_of(9, 10_000))
    assert driver.store((late, buffer)) == (Outcome.REJECTED,)
    assert counted(driver) == (3, 3 * OBJECT_BYTES)
    driver.delete(keys[0])
    assert driver.store((late, buffer)) == (Outcome.DONE,)
    assert adapter.usage().capacity_bytes == 3 * OBJECT_BYTES
    adapter.close(5)


def test_where_this_machine_has_no_memory_left_it_rejects_and_promises_nothing() -> None:
    class TooLarge(BorrowedBuffer):
        @property
        def view(self) -> memoryview:
            raise MemoryError

    memory = BorrowedMemory()
    adapter = MemoryAdapter(MemorySettings(max_size_gb=2 * OBJECT_BYTES / 2**30), adapter_context(memory))
    driver = L2Driver(adapter)
    for _ in range(3):
        assert driver.store((object_key(0), TooLarge(memory.region, 0, OBJECT_BYTES))) == (Outcome.REJECTED,)
    put(driver, memory, 2)
    adapter.close(5)


@pytest.mark.parametrize("size", [0, -1, float("inf"), "much"])
def test_a_size_that_makes_no_sense_is_refused(size: object) -> None:
    with pytest.raises(ValidationError, match="max_size_gb"):
        MemorySettings.model_validate({"max_size_gb": size})
