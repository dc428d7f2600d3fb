"""What turns an object's payload into fewer or other bytes on its way to a backend, and back.

The header page says which serdes an object went through, with the digest of what is stored and, for lossless ones, of
the payload: `decode` is only given stored bytes whose digest is right (docs/internals/object-format.md, "Object").
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from lmcache_client.layout import ObjectLayout
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import SERDE_PARAMETERS_MAX_BYTES

PARAMETERS_MAX_BYTES = SERDE_PARAMETERS_MAX_BYTES


class Serde(ABC):
    """Called from several threads at once; nothing is remembered from one object to the next.

    In a chain, each serde is given what the one before has made.  Only the first is given a payload with the layout of the
    chunk; the others, and all of them where a chunk has layers of several shapes, are given bytes (`opaque_layout`)."""

    needs_elements: bool = False
    """True: made for numbers, and so only ever the first of a chain, for chunks of one shape."""
    lossless: bool = True
    """False: what comes back differs from what was given, by no more than `error_bound`."""
    error_bound: float = 0.0
    """For lossy serdes: the largest error of an element, as a share of the largest absolute value in its chunk."""
    conceals: bool = False
    """True: nobody may learn from a header what was given; it then has no digest of the payload."""

    def parameters(self) -> bytes:
        """Up to 64 bytes that stand in each object's header and that `decode` is given back: a level, a key's number."""
        return b""

    @abstractmethod
    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        """Most bytes that `encode` may need for a payload of this layout."""

    @abstractmethod
    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        """Write what is to be stored to the start of `into` (`stored_bytes_max` bytes) and return its length.
        `payload` is L1's own memory: read it, and keep nothing of it."""

    @abstractmethod
    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        """Fill `into`, which has the payload's length.  Raises DamagedObjectError where `stored` cannot be this object's;
        `into` is thrown away then."""
