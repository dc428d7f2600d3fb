"""The inner stream of a pickled tensor: what torch writes for a storage in its format from before zip files.

It is five pickles, a count and the raw bytes.  Only four things in it vary (class, key, count, bytes), so it is matched
against a pattern and not read as pickle.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES

DTYPE_OF_CLASS: Final = {
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
}
"""Types that came after these travel as untyped storages; their dtype stands beside the storage."""

_COUNT = struct.Struct("<q")
_HEAD_MAX_BYTES = 512
"""More than the longest head that the pattern can match."""

# Magic number, protocol version and the machine's type sizes: three pickles without anything that varies.
_PREAMBLE = (
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    b"\x80\x02M\xe9\x03."
    b"\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_endianq\x02\x88"
    b"X\x0a\x00\x00\x00type_sizesq\x03}q\x04(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04"
    b"X\x04\x00\x00\x00longq\x07K\x04uu."
)
# The storage's description, and the list of the keys whose bytes follow: just the one.
_HEAD = re.compile(
    re.escape(_PREAMBLE)
    + rb"\x80\x02\(X\x07\x00\x00\x00storageq\x00"
    + rb"c(?P<home>torch|torch\.storage)\n(?P<kind>[A-Za-z0-9]{1,24}Storage)\nq\x01"
    + rb"X(?P<size>[\x01-\x14])\x00\x00\x00(?P<key>[0-9]{1,20})q\x02X\x03\x00\x00\x00cpuq\x03"
    + rb"(?:K(?P<byte>.)|M(?P<short>..)|J(?P<int>....)|\x8a(?P<width>[\x04-\x08])(?P<long>.{4,8}?))"
    + rb"Ntq\x04Q\."
    + rb"\x80\x02\]q\x00X(?P=size)\x00\x00\x00(?P=key)q\x01a\.",
    re.DOTALL,
)


class PickledStorage(NamedTuple):
    """The bytes of one tensor, not copied; `dtype` is None where the storage itself has no type."""

    dtype: str | None
    data: memoryview


def read_storage(stream: memoryview) -> PickledStorage:
    """Read one inner stream, from its first byte to its last.  Raises ProtocolError."""
    head = _HEAD.match(bytes(stream[:_HEAD_MAX_BYTES]))
    if head is None or len(head["key"]) != head["size"][0]:
        raise ProtocolError("a tensor's storage is not in the form in which torch writes CPU storages")
    kind = head["kind"].decode()
    untyped = head["home"] == b"torch.storage" and kind == "UntypedStorage"
    dtype = None if untyped else DTYPE_OF_CLASS.get(kind) if head["home"] == b"torch" else None
    if dtype is None and not untyped:
        raise ProtocolError(f"a storage of class '{kind}' holds no type that this server stores")
    raw = stream[head.end() + _COUNT.size :]
    items = _described_count(head)
    if len(stream) < head.end() + _COUNT.size or _COUNT.unpack_from(stream, head.end()) != (items,):
        raise ProtocolError("a storage's two counts of its elements differ or are cut off")
    item_bytes = 1 if dtype is None else ITEM_BYTES[dtype]
    if items * item_bytes != len(raw):
        raise ProtocolError(f"a storage of {items} elements of {item_bytes} bytes comes with {len(raw)} bytes")
    return PickledStorage(dtype, raw)


def _described_count(head: re.Match[bytes]) -> int:
    """The element count of the description, or -1 where its long form is not as long as it says."""
    if head["long"] is None:
        digits: bytes = head["byte"] or head["short"] or head["int"]
        # The shorter forms are unsigned, the four-byte one is not.
        return int.from_bytes(digits, "little", signed=head["int"] is not None)
    if head["width"][0] != len(head["long"]):
        return -1
    return int.from_bytes(head["long"], "little", signed=True)
