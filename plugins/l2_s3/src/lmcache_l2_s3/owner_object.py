"""The owner's record as an object of the bucket."""

from __future__ import annotations

from typing import Final

from lmcache_l2_s3.answers import Answer, S3Error
from lmcache_l2_s3.calls import InThread
from lmcache_l2_s3.control_plane import Conditions, ControlPlane


class OwnerObject:
    """`OwnerRecords` of one bucket and prefix.  One event loop."""

    def __init__(self, control: ControlPlane, name: str, conditions: Conditions, in_thread: InThread) -> None:
        self._control: Final = control
        self._name: Final = name
        self._conditions: Final = conditions
        self._in_thread: Final = in_thread
        self._seen: tuple[bytes, str] | None = None

    @property
    def compares(self) -> bool:
        return self._conditions.only_new and self._conditions.only_same

    async def read(self) -> bytes | None:
        self._seen = await self._in_thread(self._control.get, self._name)
        return None if self._seen is None else self._seen[0]

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        if not self.compares:
            return await self._in_thread(self._put, data, {})
        if replaces is None:
            return await self._in_thread(self._put, data, {"IfNoneMatch": "*"})
        if self._seen is None or self._seen[0] != replaces:
            await self.read()
        if self._seen is None or self._seen[0] != replaces:
            return False
        return await self._in_thread(self._put, data, {"IfMatch": self._conditions.tag(self._seen[1])})

    async def remove(self) -> None:
        await self._in_thread(self._control.remove, self._name)

    def _put(self, data: bytes, conditions: dict[str, str]) -> bool:
        try:
            return self._control.put(self._name, data, **conditions)
        except S3Error as error:
            if error.answer is Answer.ABSENT:
                return False
            raise
