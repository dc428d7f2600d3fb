"""Is a stored object damaged, or was only one answer altered on its way?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from lmcache_core import BorrowedBuffer, ObjectKey, Outcome, check

REMEMBERED_MAX: Final = 1024
"""Most objects that are remembered for each reason; an older one is read once more."""

Value = TypeVar("Value")


class SecondLook:
    """Has whole objects read again, one at a time, before they are removed for a damage.  Belongs to one event loop."""

    def __init__(
        self,
        read: Callable[[ObjectKey], Awaitable[memoryview | None]],
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        """`read` returns the object in memory of its own, or None where none is there that can be read, and goes another
        way than loads do where there is one.  `in_thread` runs what takes long."""
        self._read: Final = read
        self._in_thread: Final = in_thread
        self._turn: Final = asyncio.Lock()  # there is memory for one object
        self._vouched: Final[dict[bytes, None]] = {}
        self._wanted: Final[dict[bytes, BorrowedBuffer]] = {}

    def was_loaded_in_vain(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        """It did not fit into the buffer, or came altered: one that is whole, and does not fit, is of no use here."""
        _remember(self._wanted, key.object_id, buffer)

    async def finds_whole(self, key: ObjectKey) -> bool:
        """Is it there whole?  Found so before, and refused again, it is of no use to this server, whatever its fault:
        False.  Raises what `read` raises."""
        async with self._turn:
            wanted = self._wanted.pop(key.object_id, None)
            if key.object_id in self._vouched:
                del self._vouched[key.object_id]
                return False
            whole = await self._read(key)
            if whole is None or (await self._in_thread(check, whole, key, at_most=True)).outcome is not Outcome.DONE:
                return False
            if wanted is not None and not wanted.takes(len(whole)):
                return False
            _remember(self._vouched, key.object_id, None)
            return True


def _remember(among: dict[bytes, Value], object_id: bytes, value: Value) -> None:
    among[object_id] = value
    if len(among) > REMEMBERED_MAX:
        del among[next(iter(among))]
