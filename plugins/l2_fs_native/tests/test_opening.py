"""Who owns a directory, which engine works, and what is left behind."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import ConfigError, Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, put
from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer
from lmcache_l2_fs_native import opening
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.io import IoEngine
from plugins.l2_fs_native.tests.gated_engine import gate_engines

DONE = Outcome.DONE
Open = Callable[..., FsNativeAdapter]


def held() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.parametrize("second", ["fs", "fs_native"])
def test_a_second_server_is_refused_with_the_owners_name_and_a_remedy(
    open_here: Open, root: Path, memory: BorrowedMemory, second: str
) -> None:
    from lmcache_devkit.borrowed_memory import adapter_context

    first = open_here(boot_id="first-boot")
    other = OpenableOffer(installed_offer("l2_adapter", second), {"base_path": str(root)})
    with pytest.raises(ResourceError) as refused:
        other.open(adapter_context(memory, name=second))
    message = str(refused.value)
    for part in (str(root), "instance-of-tests", f"pid {os.getpid()}", "first-boot", "a directory of its own"):
        assert part in message
    assert "\n" not in message
    first.close(30)
    adapter = other.open(adapter_context(memory, name=second))
    adapter.close(30)


def test_auto_takes_io_uring_where_it_is_to_be_had(open_here: Open) -> None:
    expected = int(IoEngine.has_io_uring())
    assert open_here(io_engine="auto").counters()["engine_io_uring"] == expected


def test_an_engine_that_is_not_to_be_had_is_a_configuration_error(
    open_here: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> IoEngine:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(opening, "IoEngine", refuse)
    with pytest.raises(ConfigError, match=r"fs_native: io_engine 'io_uring' is not available here \(.*'auto'"):
        open_here(io_engine="io_uring")
    assert not root.exists()


@pytest.mark.parametrize("fault", ["the directory", "O_DIRECT", "the loop"])
def test_what_cannot_be_opened_leaves_nothing_taken(
    open_here: Open, root: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    open_here().close(30)  # what is made once is made
    before = held()

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        match fault:
            case "the directory":
                patch.setattr(os, "link", fail)
            case "O_DIRECT":
                patch.setattr(opening, "find_alignment", fail)
            case _:
                patch.setattr(FsNativeAdapter, "started", fail)
        with pytest.raises(ResourceError, match="Input/output error"):
            open_here(use_odirect=True)
    assert held() == before
    open_here()


@pytest.mark.parametrize("below", ["file", "file/kv"])
def test_a_path_that_cannot_be_a_directory_is_refused_in_one_line(tmp_path: Path, open_here: Open, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"base_path '.*' cannot be used \(.*name one") as refused:
        open_here(base_path=str(tmp_path / below))
    assert "\n" not in str(refused.value)


def test_where_o_direct_is_not_taken_files_are_buffered_and_one_warning_says_so(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "find_alignment", lambda directory: 0)
    adapter = open_here(use_odirect=True)
    put(L2Driver(adapter), memory, 3)
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "O_DIRECT is not taken here" in warning.getMessage()
    assert adapter.counters()["engine_bounced"] == 0


def test_slots_that_o_direct_cannot_use_are_a_warning_with_its_remedy(
    open_here: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "find_alignment", lambda directory: 65_536)
    open_here(use_odirect=True)
    assert "wanted_bytes=65536; raise --l1-align-bytes" in caplog.text


def test_a_directory_whose_engine_did_not_stop_stays_locked(
    open_here: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may still write there, and the next owner would remove its temporaries under it."""
    made = gate_engines(monkeypatch)
    adapter = open_here()
    with monkeypatch.context() as patch:
        patch.setattr(made[0], "close", lambda seconds: False, raising=False)
        adapter.close(1)
    assert "the i/o engine did not stop" in caplog.text
    with pytest.raises(ResourceError, match="in use by"):
        open_here()
    made[0].close(30)


def test_counters_say_what_files_and_engine_do(open_here: Open, memory: BorrowedMemory, io_engine: str) -> None:
    adapter = open_here(io_engine=io_engine)
    driver = L2Driver(adapter)
    keys = put(driver, memory, 2)
    driver.load(*((key, memory.lend(OBJECT_BYTES)) for key in keys))
    counters = adapter.counters()
    assert counters["engine_io_uring"] == int(io_engine == "io_uring")
    assert (counters["objects"], counters["bytes"]) == (2, 2 * OBJECT_BYTES)
    assert (counters["engine_bytes_read"], counters["engine_bytes_written"]) == (2 * OBJECT_BYTES, 2 * OBJECT_BYTES)
    assert (counters["engine_in_flight"], counters["engine_waiting"]) == (0, 0)
    assert {"foreign", "damaged", "rejected_full", "recovering", "engine_bounced", "engine_errors"} <= set(counters)


def test_what_is_not_to_persist_is_gone_after_an_orderly_stop(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    adapter = open_here(persist_enabled=False)
    put(L2Driver(adapter), memory, 5)
    adapter.close(30)
    assert list(root.rglob("*.kv")) == []
    assert L2Driver(open_here()).has(object_key(0)) == (Outcome.MISSING,)
