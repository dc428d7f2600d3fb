"""An L2 adapter on an event loop that keeps each object in a file, but for how it moves the bytes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from lmcache_core import AdapterContext, Condition, KeyPage, ObjectKey, Outcome, Usage
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_object_files.object_files import ObjectFiles

_PASSING: Final = (errno.EINTR, errno.EAGAIN, errno.ESTALE)
"""A signal, a lock of the file system, a handle that a network file system has to look up again."""


class AsyncFileAdapter(AsyncL2Adapter):
    """Subclass it with `store` and `load`, and with a `stopped` that closes the files when nothing writes there any more."""

    contains_is_local = True  # the index

    def __init__(self, context: AdapterContext, files: ObjectFiles, concurrency: int) -> None:
        """To be called last, as that of `AsyncL2Adapter`."""
        self._files = files
        super().__init__(context, concurrency)

    async def contains(self, key: ObjectKey) -> bool:
        if self._files.knows(key):
            return True
        return self._files.may_hold(key) and await self.in_thread(self._files.contains, key)

    async def delete(self, key: ObjectKey) -> Outcome:
        return await self.in_thread(self._files.delete, key)

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return await self.in_thread(self._files.discard, key, outcome)

    def is_transient(self, error: Exception) -> bool:
        return super().is_transient(error) or (isinstance(error, OSError) and error.errno in _PASSING)

    def usage(self) -> Usage | None:
        return self._files.usage()

    def conditions(self) -> Sequence[Condition]:
        return self._files.conditions()

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self._files.list_keys(cursor, limit)

    def delete_other_versions(self) -> int:
        return self._files.delete_other_versions()
