"""The `mock` adapter: a backend of a given size and speed, without the device."""

from __future__ import annotations

import time
from typing import Annotated, Final

from pydantic import Field

from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.simulated_link import SimulatedLink

GIB: Final = 2**30
CLOSING_SHARE: Final = 0.8
"""Share of a close's deadline that transfers may still take; the rest is for answering."""

Positive = Field(gt=0, allow_inf_nan=False)


class MockSettings(PluginSettings):
    """How large the backend is, and how fast."""

    max_size_gb: Annotated[
        float,
        Positive,
        Field(
            description="Most that is kept, in GiB, header pages included; memory is taken as objects come.",
            examples=[256],
        ),
    ]
    mock_bandwidth_gb: Annotated[
        float, Positive, Field(description="Speed in GiB per second, which stores and loads share.", examples=[10])
    ]


class MockAdapter(MemoryAdapter):
    """A `memory` adapter whose stores and loads take as long as the bytes take on its link, or the copy if that is longer.

    Lookups and deletes, and what moves no bytes (a miss, a store of what is there, one that is rejected), take no time."""

    def __init__(self, settings: MockSettings, context: AdapterContext) -> None:
        self._link = SimulatedLink(settings.mock_bandwidth_gb * GIB)
        super().__init__(MemorySettings(max_size_gb=settings.max_size_gb), context)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if self.contains(key):
            return Outcome.DONE
        started = time.monotonic()
        return self._passed(super().store(key, buffer), buffer, started)

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        started = time.monotonic()
        outcome = super().load(key, buffer)
        return self._passed(outcome, buffer._replace(length=self.stored_bytes(key) or 0), started)

    def close(self, deadline_seconds: float) -> None:
        self._link.cut(deadline_seconds * CLOSING_SHARE)
        super().close(deadline_seconds)

    def _passed(self, outcome: Outcome, buffer: BorrowedBuffer, started: float) -> Outcome:
        """The outcome of an operation that copied the bytes, once they have been on the link as well."""
        if outcome is not Outcome.DONE:
            return outcome
        return Outcome.DONE if self._link.wait_until(self._link.book(buffer.length, started)) else Outcome.FAILED


def open_mock(settings: MockSettings, context: AdapterContext) -> MockAdapter:
    return MockAdapter(settings, context)
