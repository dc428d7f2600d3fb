"""Which objects can go through a chain of serdes, as far as their length and layout say."""

from __future__ import annotations

from typing import Final

from lmcache_client.layout import ChunkLayout, ObjectLayout, opaque_layout
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.serde.chain import SerdeChain, SerdeFailedError
from lmcache_core.serde.object_work import scratch_bytes


class SizeLimits:
    """Any thread."""

    def __init__(self, chain: SerdeChain, scratch_bytes_max: int, stored_bytes_max: int | None) -> None:
        """One object may take so much memory on its way, and may be so long at most when it is stored, header page
        included."""
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
