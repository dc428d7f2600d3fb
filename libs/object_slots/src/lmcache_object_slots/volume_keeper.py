"""The metadata of a volume for coroutines: changes announced, checkpoints written, off the request path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lmcache_object_slots.slot_index import SlotIndex
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.volume import Volume


class InThread(Protocol):
    """Runs what blocks in a thread, and outlasts it: `AsyncL2Adapter.in_thread`."""

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class CheckpointTimes:
    """Every `interval_seconds` one is written where something has changed: when the adapter was idle for
    `quiet_seconds`, and after another interval anyway.  Not `periodic`: at the end only."""

    periodic: bool = True
    interval_seconds: float = 60.0
    quiet_seconds: float = 0.1


class VolumeKeeper:
    """On one loop, several coroutines at a time; the volume sees one thread at a time.  Raises OSError."""

    def __init__(self, volume: Volume, index: SlotIndex, in_thread: InThread, *, exact: bool) -> None:
        """`exact`: the current checkpoint is."""
        self._volume = volume
        self._index = index
        self._in_thread = in_thread
        self._turn = asyncio.Lock()
        self._exact = exact
        self.checkpoints = 0
        """Written since the start."""

    async def begin_changes(self) -> None:
        """To be awaited before a slot changes."""
        if self._volume.is_changing:
            return
        async with self._turn:
            if not self._volume.is_changing:
                self._exact = False
                await self._in_thread(self._volume.begin_changes)

    async def swept_to(self, slot: int) -> None:
        async with self._turn:
            await self._in_thread(self._volume.swept_to, slot)

    async def write(self, *, last: bool = False) -> None:
        """A checkpoint.  The `last` one, after which nothing changes, is exact where all slots are in order."""
        if last and self._exact:
            return
        states = (SlotState.FREE, SlotState.HELD)
        exact = last and sum(map(self._index.slots_in, states)) == self._index.count
        async with self._turn:
            await self._in_thread(self._volume.write_checkpoint, self._index, exact=exact)
        self._exact = exact
        self.checkpoints += 1

    def release_buffers(self) -> None:
        """Stop writing; the threads end soon."""
        self._in_thread = _ended

    async def write_now_and_then(
        self, times: CheckpointTimes, changes: Callable[[], int], last_use: Callable[[], float]
    ) -> None:
        """Until it is cancelled.  `last_use` is on the clock of `time.monotonic`."""
        written = changes()
        while True:
            await asyncio.sleep(times.interval_seconds)
            if changes() == written:
                continue
            end = time.monotonic() + times.interval_seconds
            while (now := time.monotonic()) < end and (busy := last_use() + times.quiet_seconds - now) > 0:
                await asyncio.sleep(busy)
            written = changes()
            await self.write()


async def _ended(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    raise RuntimeError("the volume was closed")
