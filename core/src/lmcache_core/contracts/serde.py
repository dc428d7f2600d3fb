"""What turns an object's payload into fewer or other bytes on its way to a backend, and back.

The header page says which serdes an object went through, with the digest of what is stored and, for lossless ones, of
the payload: `decode` is only given stored bytes whose digest is right (docs/internals/object-format.md, "Object").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from lmcache_client.layout import ChunkLayout, ObjectLayout
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter
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
    """True: a header must not reveal the original payload; it then has no digest of the payload."""

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


SerdeDirection = Literal["encode", "decode"]


@dataclass(slots=True)
class SerdeCounts:
    """One serde of one adapter in one direction.  Bytes and seconds are those of objects that it finished."""

    objects: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    seconds: float = 0.0
    """All threads together: `input_bytes / seconds` is the speed of one of them."""
    failures: int = 0


class SerdeAdapter(L2Adapter):
    """An L2 adapter that puts a chain of serdes around another one."""

    @property
    @abstractmethod
    def lossy(self) -> tuple[str, ...]:
        """Names of its serdes that are not lossless."""

    @property
    @abstractmethod
    def needs_elements(self) -> bool:
        """Whether a serde of it is made for numbers (`Serde.needs_elements`)."""

    @abstractmethod
    def fault_of(self, layout: ChunkLayout) -> str | None:
        """Why no chunk of this layout can be stored; None where they can."""

    @abstractmethod
    def serde_counts(self) -> Mapping[tuple[str, SerdeDirection], SerdeCounts]:
        """By the serde's name and the direction.  Exact, from any thread."""

    @abstractmethod
    def refusals(self) -> Mapping[str, int]:
        """Objects that were given to no serde, by reason: `too_large`, `unknown_layout`, `other_chain`."""


class SerdeLayouts(Protocol):
    """Layouts of chunks, as engines have registered them.  Safe from any thread; never blocks."""

    def elements(self, fingerprint: bytes, payload_bytes: int) -> ObjectLayout | None:
        """The elements of a payload: None for a layout that is not registered, for chunks of several shapes, and where the
        length is another one."""

    def all(self) -> tuple[ChunkLayout, ...]: ...

    def listen(self, listener: Callable[[ChunkLayout], None]) -> None:
        """Call `listener`, which must not raise, with each layout that is new."""

    def ignore(self, listener: Callable[[ChunkLayout], None]) -> None:
        """Undo `listen`."""


class NamedSerde(NamedTuple):
    """A serde that was opened, by the name of its offer."""

    name: str
    serde: Serde


class SerdeChainContext(msgspec.Struct, frozen=True):
    """What the server gives a chain of serdes when it opens it around an adapter."""

    serdes: Sequence[NamedSerde]
    """In the order in which stores go through them, one at least."""
    adapter: AdapterContext
    """The context of the adapter; the chain may add memory regions of its own before it calls `open_inner`."""
    layouts: SerdeLayouts
    where: str
    """The beginning of a message about the configuration of the serdes."""
    open_inner: Callable[[AdapterContext], L2Adapter]
    """Opens the adapter inside, which the chain closes.  Raises LMCacheError."""
