from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_transfer_torch.cuda.semaphore_handle import BUFFER_BYTES, HANDLE_LENGTH, SLOT_BYTES, SemaphoreHandle
from lmcache_transfer_torch.device import DeviceError

handles = st.builds(
    SemaphoreHandle,
    st.binary(min_size=64, max_size=64),
    st.integers(1, BUFFER_BYTES // SLOT_BYTES - 1).map(lambda slot: slot * SLOT_BYTES),
    st.integers(0, 2**64 - 1),
)


@given(handles)
def test_what_is_encoded_is_decoded(handle: SemaphoreHandle) -> None:
    assert SemaphoreHandle.decode(handle.encode()) == handle


def test_the_bytes_are_those_of_the_protocol() -> None:
    raw = SemaphoreHandle(bytes(range(64)), 16, 7).encode()
    assert raw == b"\x01" + bytes(range(64)) + (16).to_bytes(8, "big") + (7).to_bytes(8, "big")
    assert len(raw) == HANDLE_LENGTH == 81


@given(st.binary(max_size=100))
def test_anything_else_is_refused_or_means_something(raw: bytes) -> None:
    try:
        handle = SemaphoreHandle.decode(raw)
    except DeviceError:
        return
    assert handle.encode() == raw


@pytest.mark.parametrize("offset", [0, 7, 12, BUFFER_BYTES, 2**63])
def test_an_offset_that_is_not_a_slot(offset: int) -> None:
    with pytest.raises(DeviceError, match="slot"):
        SemaphoreHandle.decode(struct.pack("!B64sQQ", 1, b"", offset, 1))


def test_another_version_and_another_length() -> None:
    with pytest.raises(DeviceError, match="version 2"):
        SemaphoreHandle.decode(b"\x02" + bytes(80))
    with pytest.raises(DeviceError, match="isolated_ipc"):
        SemaphoreHandle.decode(bytes(64))


def test_what_has_happened_from_the_start_needs_no_slot() -> None:
    assert SemaphoreHandle.decode(b"\x01" + bytes(80)).sequence == 0
