"""What a load found wrong is believed when two more readings find it wrong in the same way."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Final, NamedTuple

from lmcache_core import HEADER_BYTES, ObjectKey, Outcome, check
from lmcache_l2_s3.answers import Answer, S3Error
from lmcache_l2_s3.calls import InThread
from lmcache_l2_s3.control_plane import ControlPlane
from lmcache_l2_s3.page_check import check_page
from lmcache_object_remote import OtherVersions


class Reading(NamedTuple):
    """What came when the whole of an object was read, none of it into borrowed memory."""

    outcome: Outcome
    """DONE: intact; MISSING, DAMAGED or FOREIGN."""
    etag: str = ""
    length: int = 0
    digest: bytes = b""


class SecondLook:
    """One event loop.  Reads one object at a time, so that a line that alters everything costs no more memory than one."""

    def __init__(
        self, control: ControlPlane, in_thread: InThread, adapter: str, timeout_seconds: float, others: OtherVersions
    ) -> None:
        self._others: Final = others
        self._control: Final = control
        self._in_thread: Final = in_thread
        self._adapter: Final = adapter
        self._timeout: Final = timeout_seconds
        self._turn: Final = asyncio.Lock()

    async def at(self, key: ObjectKey, name: str) -> Reading:
        """DAMAGED only where two readings are alike, each over a connection of its own.  Raises S3Error, also where they
        differ: then it is the line that alters what comes."""
        async with self._turn:
            reading = await self._read(key, name)
            if reading.outcome is not Outcome.DAMAGED:
                return reading
            again = await self._read(key, name)
        if again == reading or again.outcome in (Outcome.DONE, Outcome.MISSING):
            return again
        raise S3Error(self._adapter, f"reading '{name}' twice", Answer.CORRUPTED, None, "the two readings differ")

    async def _read(self, key: ObjectKey, name: str) -> Reading:
        return await self._in_thread(self._read_blocking, key, name)

    def _read_blocking(self, key: ObjectKey, name: str) -> Reading:
        found = self._control.read_whole(name, self._timeout)
        if found is None:
            return Reading(Outcome.MISSING)
        data, etag = found
        outcome = check_page(bytes(data[:HEADER_BYTES]), len(data), key, self._others)
        if outcome is Outcome.DONE:
            outcome = check(memoryview(data), key, at_most=True).outcome
        return Reading(outcome, etag, len(data), blake2b(data, digest_size=16).digest())
