from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from lmcache_core import MemoryRegion
from lmcache_transfer_torch.cuda import arena_side
from lmcache_transfer_torch.cuda.device import CudaDevice
from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.cuda.page_images import PageImage
from lmcache_transfer_torch.cuda.page_shape import PageShape
from lmcache_transfer_torch.descriptors import CudaRawStorage, TensorMetadata
from lmcache_transfer_torch.device import DeviceError
from plugins.transfer_torch.tests.cuda.rig import Outcome, Rig, Worker, paged_group
from plugins.transfer_torch.tests.cuda.simulated_gpu import UUIDS, Machine, compile_for_simulation


def _raw(uuid: str, handle: bytes = bytes(64), nbytes: int = 4096) -> CudaRawStorage:
    return CudaRawStorage(TensorMetadata("uint8", (nbytes,), (1,), 0, uuid), 1, handle, 0, nbytes)


def test_a_gpu_that_the_server_does_not_see() -> None:
    with Rig() as rig, pytest.raises(DeviceError, match="not visible"):
        rig.device.open_memory([_raw(UUIDS[1])], [paged_group()], 8)


def test_one_worker_on_two_gpus() -> None:
    with Rig(Machine(gpus=2)) as rig, pytest.raises(DeviceError, match="2 GPUs"):
        rig.device.open_memory([_raw(UUIDS[0]), _raw(UUIDS[1])], [paged_group()], 8)


def test_a_gpu_that_is_too_old() -> None:
    with Rig(Machine(capability=75)) as rig, pytest.raises(DeviceError, match=r"capability 7\.5"):
        rig.device.open_memory([_raw(UUIDS[0])], [paged_group()], 8)


def test_a_descriptor_larger_than_its_allocation() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        short = rig.machine.share(worker.addresses[0], worker.lengths[0] - 1)
        with pytest.raises(DeviceError, match="allocation"):
            rig.device.open_memory([_raw(UUIDS[0], short, worker.lengths[0])], worker.groups, 8)
        assert rig.machine.live["import"] == 0


def test_a_layer_that_no_staging_buffer_takes() -> None:
    huge = paged_group(layers=1, heads=1, head_bytes=64 << 20, blocks=1, slots=1)
    with Rig() as rig:
        length = 64 << 20
        handle = rig.machine.share(rig.machine.allocate(length), length)
        with pytest.raises(DeviceError, match="staged"):
            rig.device.open_memory([_raw(UUIDS[0], handle, length)], [huge], 8)


def test_a_kernel_that_is_started_in_another_way() -> None:
    def strange(shape: PageShape, gather: bool, capability: int) -> PageImage:
        return compile_for_simulation(shape, gather, capability)._replace(parameters=("i64",) * 4)

    with Rig() as rig:
        rig.device = CudaDevice(rig.machine, strange, None, False)
        worker = Worker(rig, [paged_group()])
        with pytest.raises(DeviceError, match="parameters"):
            worker.open()
        assert rig.machine.live["import"] == 0


def test_status_says_what_is_used() -> None:
    with Rig() as rig:
        assert rig.device.status() == {"gpus": [], "l1": {}}
        memory = Worker(rig, [paged_group()]).open()
        status = rig.device.status()
        assert "'usable': True" in str(status["gpus"])
        assert "pinned memory" in str(status["l1"])
        memory.close()


def test_without_a_driver_the_reason_is_reported() -> None:
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        CudaDrivers("libno-such-driver.so.1")
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        CudaDrivers("libc.so.6")  # a library, but not that one


class _File:
    """A DeviceFile on a real file; "device memory" is this process's."""

    def __init__(self, descriptor: int) -> None:
        self._path = Path(f"/proc/self/fd/{descriptor}").resolve()
        self.moved: list[str] = []

    def read(self, device: int, offset: int, length: int) -> None:
        self.moved.append("read")
        with self._path.open("rb") as file:
            file.seek(offset)
            ctypes.memmove(device, file.read(length), length)

    def write(self, device: int, offset: int, length: int) -> None:
        self.moved.append("write")
        with self._path.open("r+b") as file:
            file.seek(offset)
            file.write(ctypes.string_at(device, length))

    def close(self) -> None:
        self.moved.append("close")


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "mapped"])
def test_l1_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    files: list[_File] = []

    def open_file(descriptor: int) -> _File:
        files.append(_File(descriptor))
        return files[-1]

    monkeypatch.setattr(arena_side, "KvikioFile", open_file)
    with (tmp_path / "l1").open("w+b") as file, Rig() as rig:
        file.truncate(1 << 20)
        l1 = mmap.mmap(file.fileno(), 1 << 20)
        rig.l1 = ctypes.addressof(ctypes.c_char.from_buffer(l1))
        region = MemoryRegion(rig.l1, 1 << 20, memoryview(l1), file.fileno(), None, direct)
        rig.device = CudaDevice(rig.machine, compile_for_simulation, region, False)
        worker = Worker(rig, [paged_group(layers=4)])
        memory = worker.open()
        job, outcome = rig.job(worker, [[3, 1, 5, 7]], offset=4096), Outcome()
        assert memory.submit_gather(job, outcome)
        assert outcome.result()
        expected = rig.expected(job, worker)
        assert rig.stored(job, worker) == expected
        worker.fill(seed=4)
        outcome = Outcome()
        assert memory.submit_scatter(job, outcome)
        assert outcome.result()
        assert rig.expected(job, worker) == expected
        memory.close()
        rig.device.close(10)
        assert [file.moved for file in files] == ([["write"] * 8 + ["read"] * 8 + ["close"]] if direct else [])


def test_without_kvikio_a_file_is_reached_through_a_buffer_and_status_says_so(tmp_path: Path) -> None:
    with (tmp_path / "l1").open("w+b") as file:
        file.truncate(1 << 20)
        region = MemoryRegion(0, 1 << 20, memoryview(b""), file.fileno(), None, True)
        side = arena_side.ArenaSide.of(region, Machine().open(0))
    assert side.file is None
    assert "kvikio" in str(side.status())
