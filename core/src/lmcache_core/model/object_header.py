"""The header page in front of every object, format version 1 (docs/internals/object-format.md, "Object").

The code that moves bytes out of L1 seals them (`seal`), the code that brings them back checks them (`check`): a fault in any
bit of the page or of the payload is found.  Nothing here copies the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from lmcache_client.errors import ProtocolError
from lmcache_core.model.keys import CANONICAL_MAX_BYTES, ObjectKey, parse_canonical
from lmcache_core.model.results import Outcome

HEADER_BYTES: Final = 4096
MAGIC: Final = b"LMKVOBJ1"
FORMAT_VERSION: Final = 1
DIGEST_XXH3_128: Final = 1
DIGEST_BYTES: Final = 16

# magic, format version, flags, digest id, chain, serde count
_PREFIX = struct.Struct("<8sHHBBB")
# created (wall clock, ns), payload bytes, stored bytes, digest of the stored bytes, digest of the payload, key bytes
_BODY = struct.Struct("<QQQ16s16sH")
_INPUT_BYTES = struct.Struct("<Q")
_DIGEST_AT = HEADER_BYTES - DIGEST_BYTES
_UNSEALED = bytes(DIGEST_BYTES)
NO_DIGEST: Final = bytes(DIGEST_BYTES)
"""The digest of a payload that does not come back to the bit."""

SERDES_MAX: Final = 8
SERDE_NAME_MAX_BYTES: Final = 63
SERDE_PARAMETERS_MAX_BYTES: Final = 64
_SERDE_MAX_BYTES = 1 + SERDE_NAME_MAX_BYTES + 1 + SERDE_PARAMETERS_MAX_BYTES + _INPUT_BYTES.size

if _PREFIX.size + SERDES_MAX * _SERDE_MAX_BYTES + _BODY.size + CANONICAL_MAX_BYTES > _DIGEST_AT:
    raise AssertionError("the header page is too small for the longest key behind the longest chain of serdes")


class SerdeMark(msgspec.Struct, frozen=True):
    """One serde that encoded an object on its way to a backend."""

    name: str
    """That of its offer."""
    parameters: bytes
    input_bytes: int
    """What it was given: what undoing it must yield."""


class ObjectHeader(msgspec.Struct, frozen=True):
    """What the page of a stored object says.  Without a serde, stored bytes and payload are the same.

    `payload_digest` is `NO_DIGEST` where a serde on the way was lossy."""

    key: ObjectKey
    created_ns: int
    payload_bytes: int
    stored_bytes: int
    stored_digest: bytes
    payload_digest: bytes
    serdes: tuple[SerdeMark, ...] = ()
    """In the order in which they were applied."""


class Check(msgspec.Struct, frozen=True):
    """DONE, DAMAGED or FOREIGN, and in a few words why."""

    outcome: Outcome
    reason: str
    other_version: bool = False
    """FOREIGN, but it begins like an object of ours, in a format version that this reader does not know.  On a medium with one
    owner the next store of its key may replace it, or an explicit delete remove it; elsewhere it may be a newer server's."""


_INTACT = Check(Outcome.DONE, "intact")


def digest(data: memoryview | bytes | bytearray) -> bytes:
    """xxh3-128 of the bytes, in its canonical (big-endian) form.  Releases the GIL for long input."""
    return xxhash.xxh3_128_digest(data)


def seal(run: memoryview, key: ObjectKey, created_ns: int, payload_digest: bytes | None = None) -> None:
    """Write the header page of an object whose payload follows it: `run` is page and payload, nothing else.

    The caller owns the run; its first 4,096 bytes are overwritten.  `payload_digest` is the `digest` of the payload, where
    it is known."""
    payload = run[HEADER_BYTES:]
    payload_digest = digest(payload) if payload_digest is None else payload_digest
    _write(run, ObjectHeader(key, created_ns, len(payload), len(payload), payload_digest, payload_digest))


def seal_encoded(
    run: memoryview,
    key: ObjectKey,
    created_ns: int,
    *,
    payload_bytes: int,
    payload_digest: bytes,
    serdes: Sequence[SerdeMark],
) -> None:
    """Write the header page of an object that went through `serdes`: `run` is the page and what they made of the payload.

    `payload_digest` is `NO_DIGEST` where one of them is lossy.  Raises ValueError for marks that the page cannot hold."""
    stored = run[HEADER_BYTES:]
    if not 0 < len(serdes) <= SERDES_MAX:
        raise ValueError(f"{len(serdes)} serdes; 1 to {SERDES_MAX} fit into a header")
    _write(
        run, ObjectHeader(key, created_ns, payload_bytes, len(stored), digest(stored), payload_digest, tuple(serdes))
    )


def _write(run: memoryview, header: ObjectHeader) -> None:
    canonical = header.key.canonical
    marks = b"".join(map(_packed, header.serdes))
    body_at = _PREFIX.size + len(marks)
    key_at = body_at + _BODY.size
    page = bytearray(HEADER_BYTES)
    _PREFIX.pack_into(page, 0, MAGIC, FORMAT_VERSION, 0, DIGEST_XXH3_128, header.key.space.chain, len(header.serdes))
    page[_PREFIX.size : body_at] = marks
    _BODY.pack_into(
        page,
        body_at,
        header.created_ns,
        header.payload_bytes,
        header.stored_bytes,
        header.stored_digest,
        header.payload_digest,
        len(canonical),
    )
    page[key_at : key_at + len(canonical)] = canonical
    page[_DIGEST_AT:] = digest(page)
    run[:HEADER_BYTES] = page


def _packed(mark: SerdeMark) -> bytes:
    name = mark.name.encode()
    if not 0 < len(name) <= SERDE_NAME_MAX_BYTES or len(mark.parameters) > SERDE_PARAMETERS_MAX_BYTES:
        raise ValueError(
            f"serde '{mark.name}' with {len(mark.parameters)} bytes of parameters; a header holds names of "
            f"{SERDE_NAME_MAX_BYTES} and parameters of {SERDE_PARAMETERS_MAX_BYTES} bytes"
        )
    return (
        bytes([len(name)])
        + name
        + bytes([len(mark.parameters)])
        + mark.parameters
        + _INPUT_BYTES.pack(mark.input_bytes)
    )


def check(
    run: memoryview | bytes, key: ObjectKey, payload_digest: bytes | None = None, *, at_most: bool = False
) -> Check:
    """Is `run` the whole, unaltered object `key`, as it was stored?

    `run` has the length that the object must have in L1, and it went through no serde; with `at_most`
    (`BorrowedBuffer.at_most`) `run` may be longer than the object, whose payload may have gone through serdes: undoing them
    is the caller's part. `payload_digest` was computed by the code that moved the bytes (`digest` of the bytes after the
    page); without, it is now."""
    if bytes(run[:8]) != MAGIC:
        return Check(Outcome.FOREIGN, "the magic is not ours")
    found = _inspect(bytes(run[:HEADER_BYTES]), key)
    if isinstance(found, Check):
        return found
    if found.key != key:
        return Check(Outcome.FOREIGN, "the header names another object")
    available = len(run) - HEADER_BYTES
    if found.serdes and not at_most:
        return Check(Outcome.FOREIGN, f"stored through {' and '.join(mark.name for mark in found.serdes)}")
    if found.stored_bytes > available or (found.stored_bytes < available and not at_most):
        return Check(Outcome.DAMAGED, f"{available} payload bytes, the header says {found.stored_bytes}")
    if not found.serdes and found.payload_bytes != found.stored_bytes:
        return Check(
            Outcome.DAMAGED, f"{found.payload_bytes} bytes of payload in {found.stored_bytes}, without a serde"
        )
    moved = digest(run[HEADER_BYTES : HEADER_BYTES + found.stored_bytes]) if payload_digest is None else payload_digest
    if moved != found.stored_digest or (not found.serdes and found.payload_digest != found.stored_digest):
        return Check(Outcome.DAMAGED, "the digest of the payload does not match")
    return _INTACT


def inspect(page: memoryview | bytes) -> ObjectHeader | Check:
    """Read a header page alone: the header, or what is wrong with it.  Says nothing about the payload."""
    return _inspect(bytes(page), None)


def _inspect(raw: bytes, expected: ObjectKey | None) -> ObjectHeader | Check:
    """`expected` is not read anew where it is what the page names: that is most of the work."""
    if len(raw) < HEADER_BYTES:
        return Check(Outcome.DAMAGED if raw[:8] == MAGIC else Outcome.FOREIGN, f"only {len(raw)} bytes of a header")
    magic, version, flags, digest_id, chain, serdes = _PREFIX.unpack_from(raw)
    if magic != MAGIC:
        return Check(Outcome.FOREIGN, "the magic is not ours")
    if version != FORMAT_VERSION or digest_id != DIGEST_XXH3_128:
        # Asked first: another version may have its digest elsewhere, and must not be taken for a damaged one of ours.
        return Check(Outcome.FOREIGN, f"format version {version}, digest {digest_id}", other_version=True)
    if raw[_DIGEST_AT:] != digest(raw[:_DIGEST_AT] + _UNSEALED):
        return Check(Outcome.DAMAGED, "the digest of the header does not match")
    if flags or serdes > SERDES_MAX:
        return Check(Outcome.FOREIGN, f"flags {flags}, {serdes} serdes")
    try:
        marks, body_at = _marks(raw, serdes)
    except (ValueError, struct.error) as error:
        return Check(Outcome.FOREIGN, f"serdes that cannot be read: {error}")
    created_ns, payload_bytes, stored_bytes, stored, payload, key_bytes = _BODY.unpack_from(raw, body_at)
    if key_bytes > CANONICAL_MAX_BYTES:
        return Check(Outcome.DAMAGED, f"a key of {key_bytes} bytes")
    key_at = body_at + _BODY.size
    canonical = raw[key_at : key_at + key_bytes]
    try:
        key = expected if expected and expected.canonical == canonical else parse_canonical(canonical)
    except ProtocolError as error:
        return Check(Outcome.DAMAGED, str(error))
    if key.space.chain != chain:
        return Check(Outcome.DAMAGED, "header and key name different hash chains")
    return ObjectHeader(key, created_ns, payload_bytes, stored_bytes, stored, payload, marks)


def _marks(raw: bytes, count: int) -> tuple[tuple[SerdeMark, ...], int]:
    """The serdes of a page, and where they end.  Raises ValueError or struct.error."""
    at = _PREFIX.size
    marks = []
    for _ in range(count):
        name_bytes = raw[at]
        parameters_bytes = raw[at + 1 + name_bytes]
        if not 0 < name_bytes <= SERDE_NAME_MAX_BYTES or parameters_bytes > SERDE_PARAMETERS_MAX_BYTES:
            raise ValueError(f"a name of {name_bytes} and parameters of {parameters_bytes} bytes")
        name = raw[at + 1 : at + 1 + name_bytes].decode()
        at += 2 + name_bytes
        parameters = raw[at : at + parameters_bytes]
        at += parameters_bytes
        (input_bytes,) = _INPUT_BYTES.unpack_from(raw, at)
        at += _INPUT_BYTES.size
        marks.append(SerdeMark(name, parameters, input_bytes))
    return tuple(marks), at
