"""What workers say of their tensors is read as data, strictly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ProtocolError
from lmcache_transfer_torch.descriptors import (
    TENSORS_MAX,
    CpuStorage,
    CudaRawStorage,
    CudaStorage,
    read_storage,
    read_views,
)
from plugins.transfer_torch.tests.driven_engine import extension

METADATA = {"dtype": "bfloat16", "shape": [4, 8], "stride": [8, 1], "storage_offset": 2, "device_uuid": "cpu"}
CPU = {"type": "cpu_shm", "shm_name": "/lmcache_kv_1_0", "nbytes": 128, "version": 1, "metadata": METADATA}
RAW = {
    "type": "cuda_raw",
    "ipc_handle": b"h" * 64,
    "alloc_offset": 512,
    "nbytes": 128,
    "version": 1,
    "metadata": METADATA,
}
HANDLE = [0, b"m" * 65, 128, 0, b"r" * 40, 3, b"e" * 64, True]
CUDA = {"type": "cuda", "handle": HANDLE, "version": 1, "metadata": METADATA}


@pytest.mark.parametrize(("given", "kind"), [(CPU, CpuStorage), (RAW, CudaRawStorage), (CUDA, CudaStorage)])
def test_every_kind_is_read(given: dict[str, Any], kind: type[Any]) -> None:
    storage = read_storage(extension(given))
    assert type(storage) is kind
    assert storage.nbytes == 128
    assert storage.metadata.shape == (4, 8)


def test_a_handle_without_what_only_its_sender_needs_is_read() -> None:
    bare = [0, b"m" * 64, 128, 0, None, 0, None, False]
    assert read_storage(extension(CUDA | {"handle": bare})).nbytes == 128


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "npu"}, "'npu' cannot be imported here; known are cpu_shm, cuda, cuda_raw"),
        ({"type": "cuda_vmm"}, "'cuda_vmm'"),
        ({"type": 7}, "cannot be read"),
        ({"more": 1}, "more"),
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"nbytes": 0}, "nbytes"),
        ({"nbytes": -1}, "nbytes"),
        ({"nbytes": 2**63}, "nbytes"),
        ({"nbytes": 67}, "67 bytes"),
        ({"shm_name": b"x"}, "shm_name"),
        ({"shm_name": "x" * 256}, "shm_name"),
        ({"metadata": None}, "metadata"),
        ({"metadata": METADATA | {"more": 1}}, "more"),
        ({"metadata": METADATA | {"dtype": "complex64"}}, "complex64"),
        ({"metadata": METADATA | {"shape": [4, -8]}}, "shape"),
        ({"metadata": METADATA | {"shape": [4, 0]}}, "no elements"),
        ({"metadata": METADATA | {"shape": []}}, "shape"),
        ({"metadata": METADATA | {"shape": [1] * 9, "stride": [1] * 9}}, "shape"),
        ({"metadata": METADATA | {"stride": [8]}}, "2 dimensions has 1 strides"),
        ({"metadata": METADATA | {"stride": [8, -1]}}, "stride"),
        ({"metadata": METADATA | {"storage_offset": -1}}, "storage_offset"),
        ({"metadata": METADATA | {"storage_offset": 33}}, "130"),
        ({"metadata": METADATA | {"stride": [2**61, 1]}}, "strides"),
    ],
)
def test_what_is_wrong_is_refused_and_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises((ProtocolError, ValueError), match=reason):
        read_views([extension(CPU | change)])


@pytest.mark.parametrize("missing", sorted(CPU))
def test_nothing_may_be_missing(missing: str) -> None:
    with pytest.raises(ProtocolError):
        read_storage(extension({name: value for name, value in CPU.items() if name != missing}))


@pytest.mark.parametrize(
    "handle", [HANDLE[:-1], [*HANDLE, 0], [0, "text", *HANDLE[2:]], [0, b"m", -1, *HANDLE[3:]], b"pickle"]
)
def test_a_handle_is_eight_plain_values(handle: Any) -> None:
    with pytest.raises(ProtocolError):
        read_storage(extension(CUDA | {"handle": handle}))


def test_another_extension_is_not_a_tensor() -> None:
    with pytest.raises(ProtocolError, match="type 1, not 2"):
        read_storage(msgspec.msgpack.Ext(2, extension(CPU).data))


def test_tensors_of_one_storage_share_it() -> None:
    other = METADATA | {"storage_offset": 32}
    device, storages, views = read_views(
        [extension(CPU), extension(CPU | {"metadata": other}), extension(CPU | {"shm_name": "b"})]
    )
    assert device == "cpu"
    assert [storage.shm_name for storage in storages if isinstance(storage, CpuStorage)] == ["/lmcache_kv_1_0", "b"]
    assert [view.storage for view in views] == [0, 0, 1]
    assert [view.storage_offset for view in views] == [2, 32, 2]


def test_one_worker_lives_on_one_kind_of_device() -> None:
    assert read_views([extension(RAW), extension(CUDA)])[0] == "cuda"
    with pytest.raises(ProtocolError, match="one kind of device"):
        read_views([extension(RAW), extension(CPU)])


@pytest.mark.parametrize("count", [0, TENSORS_MAX + 1])
def test_the_number_of_tensors_is_bounded(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"{count} tensors"):
        read_views([extension(CPU)] * count)


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=70)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)


@given(data=st.data())
def test_any_value_of_a_field_is_read_or_refused(data: st.DataObject) -> None:
    whole = dict(data.draw(st.sampled_from([CPU, RAW, CUDA])))
    inside = data.draw(st.booleans())
    target = dict(METADATA) if inside else whole
    target[data.draw(st.sampled_from(sorted(target)) | st.text(max_size=8))] = data.draw(ANYTHING)
    if inside:
        whole["metadata"] = target
    try:
        device, storages, views = read_views([extension(whole)])
    except (ProtocolError, ValueError):
        return
    assert device in ("cpu", "cuda")
    assert views[0].span_bytes() <= storages[0].nbytes


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_storage(msgspec.msgpack.Ext(1, data))
