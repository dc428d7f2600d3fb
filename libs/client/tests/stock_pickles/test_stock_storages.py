from __future__ import annotations

import struct
from typing import Any

import pytest

from lmcache_client.errors import ProtocolError
from lmcache_client.stock_pickles import DTYPE_OF_CLASS, read_storage


@pytest.mark.parametrize("count", [1, 255, 256, 65535, 65536, 70001])
@pytest.mark.parametrize("dtype", sorted(DTYPE_OF_CLASS.values()))
def test_reads_counts_of_every_width(fake_torch: Any, dtype: str, count: int) -> None:
    item = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)
    data = b"\x5a" * (count * item)
    storage = read_storage(memoryview(fake_torch.storage(dtype, data)))
    assert (storage.dtype, bytes(storage.data)) == (dtype, data)


def test_reads_the_long_form_of_a_count(fake_torch: Any) -> None:
    stream = fake_torch.storage("uint8", b"abc")
    for width in (4, 5, 8):
        long = stream.replace(b"q\x03K\x03Nt", b"q\x03\x8a" + bytes([width]) + (3).to_bytes(width, "little") + b"Nt")
        assert bytes(read_storage(memoryview(long)).data) == b"abc"


def test_an_untyped_storage_has_no_dtype(fake_torch: Any) -> None:
    storage = read_storage(memoryview(fake_torch.storage("float8_e5m2", b"abc")))
    assert (storage.dtype, bytes(storage.data)) == (None, b"abc")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"cpu", b"gpu"),
        (b"cpu", b"cuda:0"),
        (b"storageq\x00", b"moduleq\x00\x00"),
        (b"ctorch\n", b"cos\n"),
        (b"ctorch\n", b"ctorch.storage\n"),
        (b"ByteStorage", b"LongStorage"),
        (b"ByteStorage", b"UntypedStorage"),
        (b"ByteStorage", b"system"),
        (b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
        (b"\x80\x02M\xe9\x03.", b"\x80\x02M\xea\x03."),
        (b"\x8a\nl", b"\x8a\nm"),
        (b"Ntq\x04Q.", b"Ntq\x04R."),
        (b"q\x03K\x03N", b"q\x03K\x04N"),
        (b"q\x03K\x03N", b"q\x03J\xff\xff\xff\xffN"),
        (b"q\x03K\x03N", b"q\x03\x8a\x05\x03\x00\x00\x00N"),
        (b"X\x0e\x00\x00\x0094835061036192q\x02", b"X\x0d\x00\x00\x0094835061036192q\x02"),
        (b"X\x0e\x00\x00\x00", b"X\x0d\x00\x00\x00"),
        (b"94835061036192q\x01a.", b"94835061036193q\x01a."),
        (b"94835061036192", b"9483506103619x"),
        (struct.pack("<q", 3) + b"abc", struct.pack("<q", 3) + b"ab"),
        (struct.pack("<q", 3) + b"abc", struct.pack("<q", 3) + b"abcd"),
        (struct.pack("<q", 3) + b"abc", struct.pack("<q", 2**62) + b"abc"),
        (struct.pack("<q", 3) + b"abc", struct.pack("<q", -3) + b"abc"),
        (struct.pack("<q", 3) + b"abc", struct.pack("<q", 3)[:7]),
        (struct.pack("<q", 3) + b"abc", b""),
    ],
)
def test_refuses_anything_else(fake_torch: Any, old: bytes, new: bytes) -> None:
    stream = fake_torch.storage("uint8", b"abc")
    assert old in stream
    with pytest.raises(ProtocolError):
        read_storage(memoryview(stream.replace(old, new)))


def test_refuses_every_truncation(fake_torch: Any) -> None:
    stream = fake_torch.storage("float32", bytes(8))
    for end in range(len(stream)):
        with pytest.raises(ProtocolError):
            read_storage(memoryview(stream)[:end])
