"""An L2 adapter whose objects lie in slots."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lmcache_core import (
    HEADER_BYTES,
    AdapterContext,
    BorrowedBuffer,
    Capability,
    Condition,
    KeyPage,
    ObjectHeader,
    ObjectKey,
    Outcome,
    Severity,
    Usage,
    check,
    inspect,
)
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_object_slots.header_reads import headers_at
from lmcache_object_slots.medium import SlotMedium
from lmcache_object_slots.ownership import is_at
from lmcache_object_slots.recovery import Recovery
from lmcache_object_slots.slot_index import ID_BYTES, SlotIndex
from lmcache_object_slots.slot_keeper import BLANK, SlotKeeper
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.volume import Volume
from lmcache_object_slots.volume_keeper import CheckpointTimes, VolumeKeeper

VOLATILE: Final = (
    Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ZERO_COPY | Capability.VERIFIES
    | Capability.ANY_LENGTH
)  # fmt: skip
DURABLE: Final = VOLATILE | Capability.DURABLE
NO_DEVICES: Final[Mapping[Path, int]] = MappingProxyType({})
START_PATIENCE_SECONDS: Final = 0.5
"""How long opening waits for the recovery, which continues in the background."""
WRITE_PATIENCE_SECONDS: Final = 5.0
"""After a checkpoint could not be written."""
_PASSING: Final = (errno.EINTR, errno.EAGAIN)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class SlotAdapter(AsyncL2Adapter):
    """Objects in slots of a medium; with a volume, found again after any end of the process.

    A slot holds one object, whatever its length, so capacity is given in bytes of objects: `usage` says how many
    bytes the slots would hold if all were filled as those that are, and the used share is the used share of slots."""

    capabilities = DURABLE
    contains_is_local = True  # the index

    def __init__(
        self, context: AdapterContext, medium: SlotMedium, *, concurrency: int, release: Callable[[], None],
        volume: Volume | None = None, times: CheckpointTimes | None = None, verify: bool = False,
        devices: Mapping[Path, int] = NO_DEVICES,
    ) -> None:  # fmt: skip
        """Takes over the medium and the volume; `release` is called when nothing uses them any more, also where this raises.
        Without a volume, slots are empty and blank at the start.  With `verify`, an exact checkpoint is not believed.
        `devices`: where the medium lies, and as what it was opened; open until `release`."""
        self.max_object_bytes = medium.geometry.max_object_bytes
        self._medium = medium
        self._release = release
        self._devices = devices
        self._times = times or CheckpointTimes()
        self._volume = volume
        self.capabilities = DURABLE if volume else VOLATILE
        try:
            index, exact = volume.index(verify=verify) if volume else (SlotIndex(medium.geometry.count), True)
            self._index = index
            self._volume_keeper = VolumeKeeper(volume, index, self.in_thread, exact=exact) if volume else None
            begin_changes = self._volume_keeper.begin_changes if self._volume_keeper else _at_will
            self._keeper = SlotKeeper(medium, index, begin_changes)
            self._recovery: asyncio.Task[None] | None = None
            self._checkpoints: asyncio.Task[None] | None = None
            self._known = exact
            self._last_use = time.monotonic()
            self._loop: asyncio.AbstractEventLoop | None = None
            super().__init__(context, concurrency)
        except BaseException:
            release()
            raise

    async def started(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._medium.start()
        self._recovery = self._loop.create_task(self._recover())
        await asyncio.wait((self._recovery,), timeout=START_PATIENCE_SECONDS)
        if self._volume_keeper is not None and self._times.periodic:
            self._checkpoints = self._loop.create_task(self._write_checkpoints(self._volume_keeper))

    # --- objects

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self._last_use = time.monotonic()
        header = inspect(buffer.view[:HEADER_BYTES])
        if not isinstance(header, ObjectHeader) or header.key != key or header.stored_bytes != _payload(buffer):
            self._keeper.counts["rejected_malformed"] += 1
            return Outcome.REJECTED  # after the next start it would be found as something else
        place = await self._keeper.sure_place(key)
        if place is not None:
            if place.length == buffer.length:
                return Outcome.DONE
            await self._keeper.remove(key.object_id)
        try:
            stored = await self._keeper.put(key.object_id, buffer)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            stored = False  # a file with holes, on a file system that is full
        self._keeper.counts["rejected_full"] += not stored
        return Outcome.DONE if stored else Outcome.REJECTED

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self._last_use = time.monotonic()
        place = await self._keeper.sure_place(key)
        if place is None:
            return Outcome.MISSING
        if not buffer.takes(place.length):
            return self._refuse(key, Outcome.DAMAGED)
        run = buffer._replace(length=place.length)
        self._index.begin_reading(place.slot)  # first: it is not overwritten from here on
        try:
            digest = await self._medium.read(place.slot, run)
        finally:
            self._index.end_reading(place.slot)
        found = check(run.view, key, digest, at_most=buffer.at_most)
        if found.outcome is Outcome.DONE:
            return Outcome.DONE
        if self._index.find(key.object_id) != place:
            return Outcome.MISSING  # it was deleted meanwhile
        if buffer.view[:HEADER_BYTES] == BLANK:
            self._keeper.drop_claim(key.object_id, BLANK)
            return Outcome.MISSING
        return self._refuse(key, Outcome.DAMAGED if found.other_version else found.outcome)

    async def contains(self, key: ObjectKey) -> bool:
        self._last_use = time.monotonic()
        return await self._keeper.sure_place(key) is not None

    async def delete(self, key: ObjectKey) -> Outcome:
        self._last_use = time.monotonic()
        await self._keeper.sure_place(key)
        return Outcome.DONE if await self._keeper.remove(key.object_id) else Outcome.MISSING

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        if outcome is Outcome.FOREIGN:
            self._keeper.withhold(key.object_id)
            return False  # asked for by this name, something else came; nothing is offered under it any more
        if await self._keeper.remove(key.object_id):
            self._keeper.counts["damaged"] += 1
        return True

    def is_transient(self, error: Exception) -> bool:
        return super().is_transient(error) or (isinstance(error, OSError) and error.errno in _PASSING)

    # --- what there is

    def usage(self) -> Usage | None:
        """None while the recovery still looks for objects."""
        if not self._known:
            return None
        used, objects = self._index.totals()
        slots = self._index.count - self._index.slots_in(SlotState.WITHHELD)
        each = used / objects if objects else self._medium.geometry.max_object_bytes
        return Usage(used, max(used, round(each * slots)), objects)

    def conditions(self) -> Sequence[Condition]:
        """Is the medium still the one that its path names?  The descriptors go on working, so that nothing else shows it."""
        try:
            lost = [path for path, descriptor in self._devices.items() if not is_at(descriptor, path)]
        except OSError as error:
            self.context.logger.debug("a device cannot be looked at adapter=%s error=%s", self.context.name, error)
            return ()
        return [
            Condition(
                "medium_replaced",
                Severity.WARNING,
                f"'{path}' is not what this server has opened any more; what is stored is lost at its end",
                "move it back, or remove and add the adapter to take what is there now",
            )
            for path in lost[:1]
        ]

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of object ids; the cursor is the last one that was looked at, as hex digits.  Reads one header page for
        each key."""
        after = bytes.fromhex(cursor or "")
        if cursor is not None and len(after) != ID_BYTES:
            raise ValueError(f"{cursor!r} is not a cursor of this listing")
        places = self._index.page(after, limit)
        assert self._loop is not None
        headers = (
            asyncio.run_coroutine_threadsafe(headers_at(self._medium, places), self._loop).result() if places else ()
        )
        return KeyPage(
            tuple(header.key for header in headers),
            places[-1][0].hex() if len(places) == limit else None,
            tuple(HEADER_BYTES + header.stored_bytes for header in headers),
        )

    def counters(self) -> Mapping[str, int]:
        """`objects`, `bytes` and `slots` now, of these `slots_free` and `slots_withheld` (something foreign, or unreadable);
        `recovering` 1 while headers are still read; since the start: `foreign` and `damaged` objects, those of
        `other_version`, stores that were `rejected_full` or `rejected_malformed`, `checkpoints`; and what the medium counts."""
        used, objects = self._index.totals()
        names = ("foreign", "damaged", "other_version", "rejected_full", "rejected_malformed")
        free = self._index.slots_in(SlotState.FREE) + self._index.slots_in(SlotState.SOILED)
        return {
            "objects": objects, "bytes": used, "slots": self._index.count, "slots_free": free,
            "slots_withheld": self._index.slots_in(SlotState.WITHHELD), "recovering": int(not self._known),
            "checkpoints": self._volume_keeper.checkpoints if self._volume_keeper else 0,
            **{name: self._keeper.counts[name] for name in names}, **self._medium.counters(),
        }  # fmt: skip

    # --- the end

    async def stopped(self) -> None:
        try:
            for task in (self._recovery, self._checkpoints):
                if task is not None:
                    task.cancel()
                    await asyncio.wait((task,))
            self._recovery = self._checkpoints = None
            if self._volume_keeper is not None:
                await self._keeper.empty_soiled()
                await self._volume_keeper.write(last=True)
        finally:
            if self._volume_keeper is not None:
                self._volume_keeper.release_buffers()
            try:
                await self._medium.close()
            finally:
                self._release()

    # --- how

    async def _recover(self) -> None:
        """The top of a task of its own."""
        if self._volume is not None and self._volume_keeper is not None and not self._known:
            start = time.monotonic()
            recovery = Recovery(
                self._keeper, self._volume.swept, self._volume.wipes, self._volume_keeper.swept_to,
                self.context.logger, self.context.name,
            )  # fmt: skip
            try:
                await recovery.run()
            except Exception:
                self.context.logger.exception("l2 recovery ended adapter=%s", self.context.name)
                return
            _, objects = self._index.totals()
            self.context.logger.info(
                "l2 slots recovered adapter=%s objects=%d slots=%d seconds=%.1f",
                self.context.name, objects, self._index.count, time.monotonic() - start,
            )  # fmt: skip
        self._known = True
        self._keeper.gone = None
        self._index.settle()

    async def _write_checkpoints(self, keeper: VolumeKeeper) -> None:
        while True:
            try:
                await keeper.write_now_and_then(self._times, lambda: self._keeper.changes, lambda: self._last_use)
            except OSError as error:
                self.context.logger.warning("no checkpoint adapter=%s error=%s", self.context.name, error)
                await asyncio.sleep(WRITE_PATIENCE_SECONDS)

    def _refuse(self, key: ObjectKey, outcome: Outcome) -> Outcome:
        self.reject(key, outcome)
        return outcome


def _payload(buffer: BorrowedBuffer) -> int:
    return buffer.length - HEADER_BYTES


async def _at_will() -> None:
    """Without a volume, slots may change at any time."""
