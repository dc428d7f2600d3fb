"""`fs` and `fs_native` read, list, count and delete what the other wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, put
from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED
WAYS = [("fs", "fs_native"), ("fs_native", "fs")]


@contextmanager
def opened(name: str, root: Path, memory: BorrowedMemory, *, direct: bool = False) -> Iterator[L2Driver]:
    offer = OpenableOffer(installed_offer("l2_adapter", name), {"base_path": str(root), "use_odirect": direct})
    driver = L2Driver(offer.open(adapter_context(memory, name=name)))
    try:
        yield driver
    finally:
        driver.close(30)


def wait_recovered(driver: L2Driver) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while driver.adapter.usage() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize(("writer", "reader"), WAYS)
@pytest.mark.parametrize("direct", [False, True])
def test_what_one_wrote_the_other_has(
    root: Path, memory: BorrowedMemory, writer: str, reader: str, direct: bool
) -> None:
    with opened(writer, root, memory, direct=direct) as driver:
        keys = put(driver, memory, 8)
    with opened(reader, root, memory, direct=direct) as driver:
        assert driver.has(*keys) == (DONE,) * 8, "also before recovery has come so far"
        assert driver.verified_load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 8
        put(driver, memory, 8)  # it is there already
        wait_recovered(driver)
        assert driver.adapter.usage() == (8 * OBJECT_BYTES, None, 8)
        assert set(driver.keys(3)) == set(keys)
        assert driver.delete(*keys[:4]) == (DONE,) * 4
    with opened(writer, root, memory) as driver:
        assert driver.has(*keys) == (MISSING,) * 4 + (DONE,) * 4


@pytest.mark.parametrize(("writer", "reader"), WAYS)
def test_what_was_damaged_in_between_is_refused_by_the_other(
    root: Path, memory: BorrowedMemory, writer: str, reader: str
) -> None:
    with opened(writer, root, memory) as driver:
        put(driver, memory, 1)
    (path,) = root.rglob("*.kv")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with opened(reader, root, memory) as driver:
        driver.usage()  # what is found meanwhile is a new object to a load under way, and so MISSING
        assert driver.verified_load((object_key(0), memory.lend(OBJECT_BYTES))) == (DAMAGED,)
