from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_transfer_torch.cuda.worker_storage import Place, place_of
from lmcache_transfer_torch.descriptors import CpuStorage, CudaHandle, CudaRawStorage, CudaStorage, TensorMetadata
from lmcache_transfer_torch.device import DeviceError

UUID = "a1b2c3d4-0000-1111-2222-333344445555"
HANDLE = bytes(range(64))


def _metadata(uuid: str = UUID) -> TensorMetadata:
    return TensorMetadata("uint8", (64,), (1,), 0, uuid)


def _shared(mem_handle: bytes | None, size: int = 64, offset: int = 512) -> CudaStorage:
    return CudaStorage(_metadata(), 1, CudaHandle(0, mem_handle, size, offset, b"/torch_1", 0, b"e" * 64, True))


def test_a_raw_handle() -> None:
    assert place_of(CudaRawStorage(_metadata(), 1, HANDLE, 4096, 64)) == Place(UUID, HANDLE, 4096, 64)


@pytest.mark.parametrize("front", [b"", b"\x02c", b"\x03c"])
def test_torchs_handles_old_and_new(front: bytes) -> None:
    assert place_of(_shared(front + HANDLE)) == Place(UUID, HANDLE, 512, 64)


def test_expandable_segments_are_refused_with_the_remedy() -> None:
    with pytest.raises(DeviceError, match="expandable_segments"):
        place_of(_shared(b"\x02e" + bytes(100)))


@pytest.mark.parametrize("raw", [None, b"", b"c" + HANDLE, b"\x02x" + HANDLE, HANDLE + HANDLE])
def test_other_handles_are_refused(raw: bytes | None) -> None:
    with pytest.raises(DeviceError):
        place_of(_shared(raw))


def test_a_storage_without_bytes_is_refused() -> None:
    with pytest.raises(DeviceError, match="without memory"):
        place_of(_shared(HANDLE, size=0))


@pytest.mark.parametrize("uuid", ["", "GPU", "0", UUID + "0", UUID[:-1] + "g", "MIG-" + UUID, UUID + "\n"])
def test_what_is_not_a_uuid(uuid: str) -> None:
    with pytest.raises(DeviceError, match="uuid"):
        place_of(CudaRawStorage(_metadata(uuid), 1, HANDLE, 0, 64))


@pytest.mark.parametrize("uuid", [UUID.upper(), "GPU-" + UUID])
def test_a_uuid_as_tools_write_it(uuid: str) -> None:
    assert place_of(CudaRawStorage(_metadata(uuid), 1, HANDLE, 0, 64)).uuid == UUID


def test_memory_of_a_host_is_refused() -> None:
    with pytest.raises(DeviceError, match="GPU"):
        place_of(CpuStorage(_metadata(), 1, "/lmcache_kv_1_1", 64))


@given(st.text(max_size=80), st.binary(max_size=140), st.integers(0, 2**62), st.integers(0, 2**62))
def test_whatever_is_described_is_a_place_or_refused(uuid: str, handle: bytes, size: int, offset: int) -> None:
    described: Any = CudaStorage(_metadata(uuid), 1, CudaHandle(0, handle, size, offset, None, 0, None, False))
    try:
        place = place_of(described)
    except DeviceError:
        return
    assert len(place.handle) == 64
