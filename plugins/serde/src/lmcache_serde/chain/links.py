"""Serdes applied one after the other, and undone in the opposite order; counted exactly."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from lmcache_core import (
    PARAMETERS_MAX_BYTES,
    SERDE_NAME_MAX_BYTES,
    SERDES_MAX,
    DamagedObjectError,
    LMCacheError,
    NamedSerde,
    ObjectKey,
    ObjectLayout,
    SerdeCounts,
    SerdeDirection,
    SerdeMark,
    opaque_layout,
)
from lmcache_serde.chain.scratch import pages

Refusal = Literal["too_large", "unknown_layout", "other_chain"]


class SerdeCounters:
    """Safe from any thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()  # guards the two below
        directions: tuple[SerdeDirection, ...] = ("encode", "decode")
        self._rows = {(name, direction): SerdeCounts() for name in names for direction in directions}
        self._refused: Counter[Refusal] = Counter()

    def done(self, name: str, direction: SerdeDirection, input_bytes: int, output_bytes: int, seconds: float) -> None:
        with self._lock:
            row = self._rows[name, direction]
            row.objects += 1
            row.input_bytes += input_bytes
            row.output_bytes += output_bytes
            row.seconds += seconds

    def failed(self, name: str, direction: SerdeDirection) -> None:
        with self._lock:
            self._rows[name, direction].failures += 1

    def refused(self, why: Refusal) -> None:
        """No serde was asked."""
        with self._lock:
            self._refused[why] += 1

    def rows(self) -> Mapping[tuple[str, SerdeDirection], SerdeCounts]:
        with self._lock:
            return {key: replace(row) for key, row in self._rows.items()}

    def refusals(self) -> Mapping[Refusal, int]:
        with self._lock:
            return dict(self._refused)


PAD: Final = "pad"
"""The last mark of an object that was padded with zeros to one length; its `input_bytes` are what counts of it."""
LINKS_MAX: Final = SERDES_MAX - 1
"""One mark of a header is for the padding."""
_PLANS_REMEMBERED: Final = 1024
_OF_A_PLUGIN: Final = (Exception, SystemExit)
"""What a serde may raise: all of it is the plugin's fault, and none of it may end a thread of ours."""


class SerdeFailedError(LMCacheError):
    """A serde raised, or did what its contract does not allow.  Says nothing about the object."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much memory one payload takes on its way."""

    layout: ObjectLayout
    sizes: tuple[int, ...]
    """Most bytes of the payload, and behind each serde."""

    @property
    def stored_bytes_max(self) -> int:
        return self.sizes[-1]

    @property
    def between_bytes(self) -> int:
        """Of one area for what a serde hands to the next; there are `areas` of them."""
        return pages(max(self.sizes[1:-1], default=0))

    @property
    def areas(self) -> int:
        return min(len(self.sizes) - 2, 2)


class SerdeChain:
    """Any thread; what serdes raise comes out as `SerdeFailedError`, or as `DamagedObjectError` of a decoder."""

    def __init__(self, links: Sequence[NamedSerde]) -> None:
        """Two links may have the same name, and are counted together.  Raises ValueError."""
        if not 0 < len(links) <= LINKS_MAX:
            raise ValueError(f"a chain of {len(links)} serdes; 1 to {LINKS_MAX} are possible")
        for name, _ in links:
            if name == PAD or not 0 < len(name.encode()) <= SERDE_NAME_MAX_BYTES:
                raise ValueError(
                    f"a serde cannot be called '{name}': headers hold names of 1 to {SERDE_NAME_MAX_BYTES} bytes, and "
                    f"'{PAD}' means padding there"
                )
        self._links = tuple(links)
        self.names: Final = tuple(link.name for link in links)
        self.needs_elements: Final = any(link.serde.needs_elements for link in links)
        self.lossy: Final = tuple(link.name for link in links if not link.serde.lossless)
        """Those of which what comes back is not what was given."""
        self.shows_payload_digest: Final = all(link.serde.lossless and not link.serde.conceals for link in links)
        self.counters: Final = SerdeCounters(self.names)
        self._plan = lru_cache(_PLANS_REMEMBERED)(self._planned)

    def plan(self, layout: ObjectLayout) -> Plan:
        """For a payload of this layout.  Raises SerdeFailedError."""
        return self._plan(layout)

    def encode(
        self, key: ObjectKey, plan: Plan, payload: memoryview, into: memoryview, between: Sequence[memoryview]
    ) -> tuple[int, tuple[SerdeMark, ...]]:
        """Write what is to be stored to the start of `into`, and return its length and what the header is to say.  `into`
        has `stored_bytes_max` bytes, `between` the plan's areas.  Raises SerdeFailedError."""
        marks = []
        given, layout = payload, plan.layout
        last = len(self._links) - 1
        for index, (name, serde) in enumerate(self._links):
            target = into if index == last else between[index % 2]
            started = time.perf_counter()
            try:
                room = serde.stored_bytes_max(layout) if index else plan.sizes[1]
                parameters = serde.parameters()
                length = serde.encode(key, layout, given.toreadonly(), target[:room]) if room <= len(target) else -1
            except _OF_A_PLUGIN as error:
                self.counters.failed(name, "encode")
                raise SerdeFailedError(f"serde '{name}' failed to encode") from error
            if not (isinstance(parameters, bytes) and len(parameters) <= PARAMETERS_MAX_BYTES):
                self.counters.failed(name, "encode")
                raise SerdeFailedError(
                    f"serde '{name}' has parameters {parameters!r:.80}; a header holds {PARAMETERS_MAX_BYTES} bytes of them"
                )
            if not (isinstance(length, int) and 0 < length <= room):
                self.counters.failed(name, "encode")
                raise SerdeFailedError(
                    f"serde '{name}' wrote {length!r} bytes into {min(room, len(target))}, where it asked for {room}"
                )
            self.counters.done(name, "encode", len(given), length, time.perf_counter() - started)
            marks.append(SerdeMark(name, parameters, len(given)))
            given, layout = target[:length], opaque_layout(length)
        return len(given), tuple(marks)

    def decode(
        self,
        key: ObjectKey,
        plan: Plan,
        marks: Sequence[SerdeMark],
        stored: memoryview,
        into: memoryview,
        between: Sequence[memoryview],
    ) -> None:
        """Fill `into` with the payload.  `marks` are those that `encode` returned for this chain.  Raises
        DamagedObjectError and SerdeFailedError."""
        given = stored
        for index in range(len(self._links) - 1, -1, -1):
            name, serde = self._links[index]
            mark = marks[index]
            target = into
            if index:
                # What link 0 has made goes into area 0, link 1's into area 1: each reads one and writes the other.
                target = between[(index - 1) % 2]
                if not 0 < mark.input_bytes <= len(target):
                    raise DamagedObjectError(f"serde '{name}' was given {mark.input_bytes} bytes, beyond its limits")
                target = target[: mark.input_bytes]
            layout = plan.layout if index == 0 else opaque_layout(mark.input_bytes)
            started = time.perf_counter()
            try:
                serde.decode(key, layout, mark.parameters, given.toreadonly(), target)
            except DamagedObjectError:
                self.counters.failed(name, "decode")
                raise
            except _OF_A_PLUGIN as error:
                self.counters.failed(name, "decode")
                raise SerdeFailedError(f"serde '{name}' failed to decode") from error
            self.counters.done(name, "decode", len(given), len(target), time.perf_counter() - started)
            given = target

    def _planned(self, layout: ObjectLayout) -> Plan:
        sizes, given = [layout.payload_bytes], layout
        for name, serde in self._links:
            try:
                size = serde.stored_bytes_max(given)
            except _OF_A_PLUGIN as error:
                self.counters.failed(name, "encode")
                raise SerdeFailedError(f"serde '{name}' has no bound for {given}") from error
            if not isinstance(size, int) or size < 1:
                self.counters.failed(name, "encode")
                raise SerdeFailedError(f"serde '{name}' has a bound of {size!r} bytes for {given}")
            sizes.append(size)
            given = opaque_layout(size)
        return Plan(layout, tuple(sizes))
