"""L1's memory is registered with io_uring once all of it is there, and never before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, put
from lmcache_l2_fs_native import adapter as adapter_module
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_l2_fs_native.arena_pinning import ArenaPinning, is_resident
from lmcache_native.io import IoEngine

Open = Callable[..., FsNativeAdapter]
MIB = 2**20
needs_io_uring = pytest.mark.skipif(
    not IoEngine.has_io_uring(), reason="io_uring is not built in, or this kernel does not allow it"
)


class Registry:
    """Of an engine, what this is about."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.registered: list[tuple[int, int]] = []
        self._allowed = allowed

    def register_memory(self, address: int, length: int) -> bool:
        self.registered.append((address, length))
        return self._allowed


def touch(memory: BorrowedMemory) -> None:
    memory.region.view[::4096] = b"x" * (memory.region.length // 4096)


def test_memory_is_there_once_each_page_was_touched() -> None:
    memory = BorrowedMemory(8 * MIB)
    assert not is_resident(memory.region)
    touch(memory)
    assert is_resident(memory.region)


def test_it_is_registered_when_it_has_grown_and_once() -> None:
    memory = BorrowedMemory(8 * MIB)
    registry = Registry()
    pinning = ArenaPinning(registry, adapter_context(memory))  # type: ignore[arg-type]
    assert not pinning.proceed()
    assert registry.registered == []
    touch(memory)
    assert pinning.proceed()
    assert pinning.proceed()
    assert registry.registered == [(memory.region.address, memory.region.length)]


def test_where_it_is_not_available_one_line_says_so_and_it_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    memory = BorrowedMemory(MIB)
    touch(memory)
    registry = Registry(allowed=False)
    pinning = ArenaPinning(registry, adapter_context(memory))  # type: ignore[arg-type]
    assert pinning.proceed()
    assert pinning.proceed()
    assert len(registry.registered) == 1
    assert caplog.text.count("limit on locked memory") == 1


def test_a_file_on_a_disk_is_never_pinned() -> None:
    memory = BorrowedMemory(MIB)
    touch(memory)
    on_disk = replace(memory.region, descriptor=3)
    registry = Registry()
    context = replace(adapter_context(memory), regions=(on_disk,))
    assert ArenaPinning(registry, context).proceed()  # type: ignore[arg-type]
    assert registry.registered == []


@needs_io_uring
def test_objects_come_and_go_while_memory_is_registered(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = IoEngine("io_uring", 1, 1, MIB)
    other = BorrowedMemory(memory.region.length)
    allowed = probe.register_memory(other.region.address, other.region.length)
    probe.close(30)
    if not allowed:
        pytest.skip("the limit on locked memory is too low")
    monkeypatch.setattr(adapter_module, "LOOK_SECONDS", 0.01)
    adapter = open_here(io_engine="io_uring", use_odirect=True)
    driver = L2Driver(adapter)
    keys = put(driver, memory, 20)
    items = [(key, memory.lend(OBJECT_BYTES)) for key in keys]
    assert adapter.counters()["engine_registered_bytes"] == 0
    for _ in range(20):
        assert driver.load(*items) == (Outcome.DONE,) * 20
    touch(memory)
    end = time.monotonic() + WAIT_SECONDS
    while not (registered := adapter.counters()["engine_registered_bytes"]):
        assert time.monotonic() < end
        assert driver.load(*items) == (Outcome.DONE,) * 20
    assert registered == memory.region.length
    for _ in range(20):
        assert driver.load(*items) == (Outcome.DONE,) * 20
    put(driver, memory, 20, first=20)


@pytest.mark.parametrize("way", [{"io_engine": "threads", "use_odirect": True}, {"io_engine": "auto"}])
def test_where_nothing_is_to_be_gained_nothing_is_pinned(
    open_here: Open, memory: BorrowedMemory, way: dict[str, object]
) -> None:
    touch(memory)
    adapter = open_here(**way)
    put(L2Driver(adapter), memory, 2)
    assert adapter.counters()["engine_registered_bytes"] == 0
