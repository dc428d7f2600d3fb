"""Only a worker's own shared memory is mapped, and only while it is as large as it says."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lmcache_kv_layout import LayoutHints, PageCopier, PagedGroup, TensorView, detect_groups
from lmcache_transfer_torch.cpu.device import SEGMENTS_MAX, CpuDevice
from lmcache_transfer_torch.cpu.memory import CpuMemory
from lmcache_transfer_torch.cpu.segment import CpuSegment
from lmcache_transfer_torch.descriptors import CpuStorage, TensorMetadata
from lmcache_transfer_torch.device import DeviceError, TransferJob, TransferPart
from plugins.transfer_torch.tests.driven_engine import SHM, Segment

SIZE = 8192


@pytest.fixture
def segment() -> Iterator[Segment]:
    segment = Segment(SIZE)
    yield segment
    segment.close()


@pytest.mark.parametrize("slash", ["", "/"])
def test_both_sides_see_the_same_bytes(segment: Segment, slash: str) -> None:
    mapped = CpuSegment(slash + segment.name, SIZE)
    segment.bytes[7] = 42
    assert ctypes.c_uint8.from_address(mapped.address + 7).value == 42
    mapped.check()
    mapped.close()


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "lmcache_kv_", "x", "/dev/shm/lmcache_kv_1", "../lmcache_kv_1", "lmcache_kv_/../x", "lmcache_kv_..",
        "//lmcache_kv_1", "lmcache_kv_1\n", "lmcache_kv_1\0", "lmcache-l1-0123", "lmcache_l1_pool_x", "psm_x",
        "lmcache_kv_é", "lmcache_kv_" + "1" * 201,
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="not a name of a worker's segment"):
        CpuSegment(name, SIZE)


def test_what_is_not_there_or_too_small_is_refused(segment: Segment) -> None:
    with pytest.raises(DeviceError, match="cannot be opened: No such file"):
        CpuSegment(segment.name + "x", SIZE)
    with pytest.raises(DeviceError, match=f"has {SIZE} bytes, the worker says {SIZE + 1}"):
        CpuSegment(segment.name, SIZE + 1)


def test_links_and_other_things_are_refused(segment: Segment) -> None:
    other = SHM / f"{segment.name}x"
    try:
        other.symlink_to(segment.path)
        with pytest.raises(DeviceError, match="cannot be opened"):
            CpuSegment(other.name, SIZE)
        other.unlink()
        os.mkfifo(other)
        with pytest.raises(DeviceError, match="is not shared memory"):
            CpuSegment(other.name, SIZE)
        other.unlink()
        other.mkdir()
        with pytest.raises(DeviceError, match="cannot be opened"):
            CpuSegment(other.name, SIZE)
        other.rmdir()
        other.hardlink_to(segment.path)  # L1 under a worker's name would be one
        with pytest.raises(DeviceError, match="another name"):
            CpuSegment(other.name, SIZE)
    finally:
        if other.is_dir():
            other.rmdir()
        other.unlink(missing_ok=True)


def test_another_users_segment_is_refused(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DeviceError, match=f"belongs to user {os.getuid()}"):
        CpuSegment(segment.name, SIZE)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which root alone may")
def test_of_another_user_who_may_write_to_it_too(segment: Segment) -> None:
    os.chmod(segment.path, 0o666)
    os.chown(segment.path, 23456, 23456)
    with pytest.raises(DeviceError, match="belongs to user 23456"):
        CpuSegment(segment.name, SIZE)


def test_a_segment_that_is_cut_is_noticed_and_one_that_grows_is_fine(segment: Segment) -> None:
    mapped = CpuSegment(segment.name, SIZE)
    os.truncate(segment.path, 2 * SIZE)
    mapped.check()
    os.truncate(segment.path, SIZE - 1)
    with pytest.raises(DeviceError, match=f"was cut from {SIZE} to {SIZE - 1} bytes"):
        mapped.check()
    mapped.close()


# The memory of a worker


class Copier(PageCopier):
    """Says when it begins, and waits."""

    def __init__(self) -> None:
        super().__init__(native="off")
        self.started, self.go_on = threading.Event(), threading.Event()

    def gather(
        self,
        group: PagedGroup,
        bases: Sequence[int],
        blocks: Sequence[int],
        objects: Sequence[int],
        *,
        layers: range | None = None,
    ) -> int:
        self.started.set()
        assert self.go_on.wait(10)
        return super().gather(group, bases, blocks, objects, layers=layers)


def mappings(segment: Segment) -> int:
    return Path("/proc/self/maps").read_text().count(segment.name)


def test_memory_stays_mapped_while_a_copy_runs(segment: Segment) -> None:
    copier = Copier()
    (group,) = detect_groups([TensorView("uint8", (4, 2, 4, 32), (256, 128, 32, 1), 0, 0)], LayoutHints("HND"))
    before = mappings(segment)
    memory = CpuMemory([CpuSegment(segment.name, SIZE)], [group], copier)
    assert mappings(segment) == before + 1
    segment.bytes[:] = 7
    target = (ctypes.c_uint8 * 256)()
    job = TransferJob((TransferPart(0, [1], [ctypes.addressof(target)]),), b"")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: memory.submit_gather(job, answers.append))
    thread.start()
    assert copier.started.wait(10)
    memory.close()
    memory.close()
    assert mappings(segment) == before + 1
    copier.go_on.set()
    thread.join(10)
    assert answers == [True]
    assert bytes(target) == b"\7" * 256
    assert mappings(segment) == before
    with pytest.raises(DeviceError, match="has left"):
        memory.submit_gather(job, answers.append)
    assert answers == [True]


class Cutter(PageCopier):
    """The worker cuts its segment when the copy has just begun."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def gather(
        self,
        group: PagedGroup,
        bases: Sequence[int],
        blocks: Sequence[int],
        objects: Sequence[int],
        *,
        layers: range | None = None,
    ) -> int:
        os.truncate(self.path, 0)
        return super().gather(group, bases, blocks, objects, layers=layers)


@pytest.mark.skipif(not PageCopier().native, reason="only compiled copies survive memory that vanishes")
def test_memory_that_vanishes_under_a_copy_fails_it(segment: Segment) -> None:
    (group,) = detect_groups([TensorView("uint8", (4, 2, 4, 32), (256, 128, 32, 1), 0, 0)], LayoutHints("HND"))
    memory = CpuMemory([CpuSegment(segment.name, SIZE)], [group], Cutter(segment.path))
    target = (ctypes.c_uint8 * 256)()
    answers: list[bool] = []
    memory.submit_gather(TransferJob((TransferPart(0, [1], [ctypes.addressof(target)]),), b""), answers.append)
    assert answers == [False]
    memory.close()


class Breaking(PageCopier):
    """Fails as no copy should."""

    def gather(self, *arguments: object, **options: object) -> int:
        raise MemoryError("no room for a list")


def test_a_copy_that_fails_unexpectedly_has_ended(segment: Segment) -> None:
    """Copies run on this thread, so that nothing goes on behind one that raised: its slots must not stay taken."""
    (group,) = detect_groups([TensorView("uint8", (4, 2, 4, 32), (256, 128, 32, 1), 0, 0)], LayoutHints("HND"))
    memory = CpuMemory([CpuSegment(segment.name, SIZE)], [group], Breaking(native="off"))
    answers: list[bool] = []
    memory.submit_gather(TransferJob((TransferPart(0, [1], [1]),), b""), answers.append)
    assert answers == [False]
    before = mappings(segment)
    memory.close()
    assert mappings(segment) == before - 1


def test_segments_of_one_worker_are_bounded(segment: Segment) -> None:
    """Each costs the server a descriptor, also when it is described with many lengths."""
    metadata = TensorMetadata("uint8", (1,), (1,), 0, "cpu")
    storages = [CpuStorage(metadata, 1, segment.name, size) for size in range(1, SEGMENTS_MAX + 2)]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceError, match=f"{SEGMENTS_MAX + 1} segments"):
        CpuDevice(1).open_memory(storages, [], 16)
    assert len(os.listdir("/proc/self/fd")) == before
    CpuDevice(1).open_memory(storages[:SEGMENTS_MAX], [], 16).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_server_without_the_guard_against_cut_memory_says_so(caplog: pytest.LogCaptureFixture) -> None:
    CpuDevice(threads=1, native="off")
    (warning,) = caplog.messages
    assert "pip install lmcache-native" in warning
