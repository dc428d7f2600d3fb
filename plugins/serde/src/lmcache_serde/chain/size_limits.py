"""How much memory an object takes on its way through serdes, and which objects are too large for that."""

from __future__ import annotations

from typing import Final

from lmcache_core import HEADER_BYTES, ChunkLayout, FaultLog, ObjectLayout, Outcome, SerdeLayouts, opaque_layout
from lmcache_serde.chain.links import SerdeChain, SerdeFailedError
from lmcache_serde.chain.object_codec import StoreWork, TransferWork, scratch_bytes


class SizeLimits:
    """Any thread."""

    def __init__(self, chain: SerdeChain, scratch_bytes_max: int, stored_bytes_max: int | None) -> None:
        """`scratch_bytes_max`: memory that one object may take on its way.  `stored_bytes_max`: its length when stored,
        header page included."""
        self._chain = chain
        self._scratch_bytes_max: Final = scratch_bytes_max
        self._stored_bytes_max: Final = stored_bytes_max

    def largest_object_bytes(self) -> int | None:
        """Header page included.  None where that depends on the layout."""
        low, high = 0, self._scratch_bytes_max + 1
        try:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._beyond(opaque_layout(middle)) else (middle, high)
        except SerdeFailedError:
            return None
        return HEADER_BYTES + low

    def fault_of(self, layout: ChunkLayout) -> str | None:
        """Why no chunk of this layout can be stored; None where they can."""
        elements = layout if isinstance(layout, ObjectLayout) else None
        if elements is None and self._chain.needs_elements:
            return f"serde '{self._chain.names[0]}' takes chunks of one shape, and these have several: {layout}"
        try:
            beyond = self._beyond(elements or opaque_layout(layout.payload_bytes))
        except SerdeFailedError as error:
            return str(error)
        return f"chunks of {layout} are too large: {beyond}" if beyond else None

    def _beyond(self, layout: ObjectLayout) -> str:
        """The limit that it exceeds, and what to do; empty without one.  Raises SerdeFailedError."""
        plan = self._chain.plan(layout)
        needed = scratch_bytes(plan)
        if needed > self._scratch_bytes_max:
            return (
                f"each takes {needed} bytes of the memory of the serdes, and each direction has "
                f"{self._scratch_bytes_max}; raise serde_memory_gb"
            )
        stored = HEADER_BYTES + plan.stored_bytes_max
        if self._stored_bytes_max is not None and stored > self._stored_bytes_max:
            return f"each is stored with {stored} bytes, and the adapter inside takes {self._stored_bytes_max}"
        return ""


class WorkPlanner:
    """Any thread."""

    def __init__(self, chain: SerdeChain, layouts: SerdeLayouts, scratch_bytes_max: int, faults: FaultLog) -> None:
        """One object may take so much memory on its way."""
        self._chain = chain
        self._layouts = layouts
        self._scratch_bytes_max: Final = scratch_bytes_max
        self._faults = faults

    def fault_of(self, work: TransferWork) -> Outcome | None:
        """None, and `work` has its plan; or what it comes to without one.  Counts and logs why."""
        is_store = isinstance(work, StoreWork)
        payload_bytes = work.buffer.length - HEADER_BYTES
        if payload_bytes < 1:
            return Outcome.REJECTED if is_store else Outcome.DAMAGED
        declined = Outcome.REJECTED if is_store else Outcome.FAILED
        layout = self._layouts.elements(work.key.space.layout, payload_bytes)
        if layout is None and self._chain.needs_elements:
            self._chain.counters.refused("unknown_layout")
            return declined
        try:
            work.plan = self._chain.plan(layout or opaque_layout(payload_bytes))
        except SerdeFailedError:
            self._faults.exception("an object cannot be planned")
            return Outcome.FAILED
        if work.scratch_bytes > self._scratch_bytes_max:
            self._chain.counters.refused("too_large")
            self._faults.error(
                f"an object of {work.buffer.length} bytes takes {work.scratch_bytes} bytes of the memory of its serdes, "
                f"and each direction has {self._scratch_bytes_max}; raise serde_memory_gb"
            )
            return declined
        return None
