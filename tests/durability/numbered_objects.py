"""The objects of these tests: key, length and bytes follow from a number and a version."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from lmcache_core import HEADER_BYTES, BorrowedBuffer, ObjectKey, check, seal
from lmcache_devkit.borrowed_memory import object_key

PAYLOADS: Final = (1, 3_000, 4_096, 40_000, 100_001, 190_000)
"""Of less than a page, of whole pages, and of anything between."""
OBJECT_BYTES_MAX: Final = HEADER_BYTES + max(PAYLOADS)


def key_of(number: int) -> ObjectKey:
    return object_key(number)


def number_of(key: ObjectKey) -> int:
    return int.from_bytes(key.chunk_hash, "little")


def length_of(number: int, version: int) -> int:
    """Bytes of the whole object, its header page included."""
    return HEADER_BYTES + PAYLOADS[(number + version) % len(PAYLOADS)]


def fill(buffer: BorrowedBuffer, number: int, version: int) -> None:
    """Put the object into a buffer of its length."""
    buffer.view[HEADER_BYTES:] = _payload(number, version)
    seal(buffer.view, key_of(number), created_ns=version)


def fault_of(buffer: BorrowedBuffer, number: int, version: int) -> str | None:
    """What is wrong with the object in this buffer, bit by bit; None: nothing."""
    found = check(buffer.view, key_of(number))
    if buffer.view[HEADER_BYTES:] != _payload(number, version):
        return f"version {version} has other bytes than were stored ({found.reason})"
    return None if found.reason == "intact" else found.reason


def _payload(number: int, version: int) -> bytes:
    seed = number.to_bytes(8, "little") + version.to_bytes(8, "little")
    return blake3(seed).digest(length_of(number, version) - HEADER_BYTES)
