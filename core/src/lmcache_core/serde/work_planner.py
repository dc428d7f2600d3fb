"""How much memory an object takes on its way through serdes, and which objects cannot go it at all."""

from __future__ import annotations

from typing import Final

from lmcache_client.layout import opaque_layout
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_core.serde.chain import SerdeChain, SerdeFailedError
from lmcache_core.serde.known_layouts import KnownLayouts
from lmcache_core.serde.object_work import StoreWork, TransferWork


class WorkPlanner:
    """Any thread."""

    def __init__(self, chain: SerdeChain, layouts: KnownLayouts, scratch_bytes_max: int, faults: FaultLog) -> None:
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
            self._chain.tally.refused("unknown_layout")
            return declined
        try:
            work.plan = self._chain.plan(layout or opaque_layout(payload_bytes))
        except SerdeFailedError:
            self._faults.exception("an object cannot be planned")
            return Outcome.FAILED
        if work.scratch_bytes > self._scratch_bytes_max:
            self._chain.tally.refused("too_large")
            self._faults.error(
                f"an object of {work.buffer.length} bytes takes {work.scratch_bytes} bytes of the memory of its serdes, "
                f"and each direction has {self._scratch_bytes_max}; raise serde_memory_gb"
            )
            return declined
        return None
