"""The header page in front of every object, format version 1 (docs/object-format.md, "Object").

Whoever moves the bytes out of L1 seals them (`seal`), whoever brings them back checks them (`check`): a fault in any bit
of the page or of the payload is found.  Nothing here copies the payload.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from lmcache_core.model.errors import ProtocolError
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
_KEY_AT = _PREFIX.size + _BODY.size
_DIGEST_AT = HEADER_BYTES - DIGEST_BYTES
_UNSEALED = bytes(DIGEST_BYTES)

if _KEY_AT + CANONICAL_MAX_BYTES > _DIGEST_AT:
    raise AssertionError("the header page is too small for the longest key")


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What the page of a stored object says.  Without a serde, stored bytes and payload are the same."""

    key: ObjectKey
    created_ns: int
    payload_bytes: int
    stored_bytes: int
    stored_digest: bytes
    payload_digest: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """DONE, DAMAGED or FOREIGN, and in a few words why."""

    outcome: Outcome
    reason: str


_INTACT = Check(Outcome.DONE, "intact")


def digest(data: memoryview | bytes | bytearray) -> bytes:
    """xxh3-128 of the bytes, in its canonical (big-endian) form.  Releases the GIL for long input."""
    return xxhash.xxh3_128_digest(data)


def seal(run: memoryview, key: ObjectKey, created_ns: int) -> None:
    """Write the header page of an object whose payload stands behind it: `run` is page and payload, nothing else.

    The caller owns the run; its first 4,096 bytes are overwritten."""
    payload = run[HEADER_BYTES:]
    payload_digest = digest(payload)
    canonical = key.canonical
    page = bytearray(HEADER_BYTES)
    _PREFIX.pack_into(page, 0, MAGIC, FORMAT_VERSION, 0, DIGEST_XXH3_128, key.space.chain, 0)
    _BODY.pack_into(
        page, _PREFIX.size, created_ns, len(payload), len(payload), payload_digest, payload_digest, len(canonical)
    )
    page[_KEY_AT : _KEY_AT + len(canonical)] = canonical
    page[_DIGEST_AT:] = digest(page)
    run[:HEADER_BYTES] = page


def check(run: memoryview | bytes, key: ObjectKey, payload_digest: bytes | None = None) -> Check:
    """Is `run` the whole, unaltered object `key`?  `run` has the length that the object must have in L1.  `payload_digest` is
    what whoever moved the bytes has computed of them on the way (`digest` of `run[HEADER_BYTES:]`); without, it is now."""
    if bytes(run[:8]) != MAGIC:
        return Check(Outcome.FOREIGN, "the magic is not ours")
    found = _inspect(bytes(run[:HEADER_BYTES]), key)
    if isinstance(found, Check):
        return found
    if found.key != key:
        return Check(Outcome.FOREIGN, "the header names another object")
    if found.stored_bytes != len(run) - HEADER_BYTES or found.payload_bytes != found.stored_bytes:
        return Check(Outcome.DAMAGED, f"{len(run) - HEADER_BYTES} payload bytes, the header says {found.stored_bytes}")
    moved = digest(run[HEADER_BYTES:]) if payload_digest is None else payload_digest
    if moved != found.stored_digest or found.payload_digest != found.stored_digest:
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
        return Check(Outcome.FOREIGN, f"format version {version}, digest {digest_id}")
    if raw[_DIGEST_AT:] != digest(raw[:_DIGEST_AT] + _UNSEALED):
        return Check(Outcome.DAMAGED, "the digest of the header does not match")
    if flags or serdes:
        return Check(Outcome.FOREIGN, f"flags {flags}, {serdes} serdes")
    created_ns, payload_bytes, stored_bytes, stored, payload, key_bytes = _BODY.unpack_from(raw, _PREFIX.size)
    if key_bytes > CANONICAL_MAX_BYTES:
        return Check(Outcome.DAMAGED, f"a key of {key_bytes} bytes")
    canonical = raw[_KEY_AT : _KEY_AT + key_bytes]
    try:
        key = expected if expected and expected.canonical == canonical else parse_canonical(canonical)
    except ProtocolError as error:
        return Check(Outcome.DAMAGED, str(error))
    if key.space.chain != chain:
        return Check(Outcome.DAMAGED, "header and key name different hash chains")
    return ObjectHeader(key, created_ns, payload_bytes, stored_bytes, stored, payload)
