"""Deletions that come at the same time, as one request."""

from __future__ import annotations

import asyncio
from typing import Final

from lmcache_l2_s3.answers import Answer, Reply, S3Error
from lmcache_l2_s3.calls import InThread
from lmcache_l2_s3.control_plane import DELETE_MAX, ControlPlane
from lmcache_l2_s3.crt_client import CrtClient

GATHER_SECONDS: Final = 0.003
"""How long the first of a batch waits for others: less than any request takes."""


class BulkDelete:
    """One event loop.  A store that knows no deletion in bulk is asked for one object at a time from then on."""

    def __init__(self, control: ControlPlane, client: CrtClient, in_thread: InThread) -> None:
        self._control: Final = control
        self._client: Final = client
        self._in_thread: Final = in_thread
        self._gathered: dict[str, asyncio.Future[Reply]] = {}
        self._flushes: Final = set[asyncio.Task[None]]()
        self.is_bulk = True

    async def delete(self, name: str) -> Reply:
        """OK when it is gone, and also when it was not there.  Not for one name twice at the same time."""
        if not self.is_bulk:
            return await self._client.delete(name)
        if not self._gathered:
            flush = asyncio.get_running_loop().create_task(self._flush())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        gathering = self._gathered
        gathering[name] = answer
        cancellation: asyncio.CancelledError | None = None
        while not answer.done():
            try:
                await asyncio.wait((answer,))  # which does not cancel what it waits for
            except asyncio.CancelledError as error:
                if gathering is self._gathered:  # no request was sent yet
                    del gathering[name]
                    raise
                cancellation = error  # it is on its way, and must not arrive behind what follows this deletion
        try:
            if cancellation is not None:
                raise cancellation
            return answer.result()
        finally:
            del cancellation  # it holds this frame

    async def _flush(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        batch, self._gathered = self._gathered, {}
        names = list(batch)
        replies: dict[str, Reply] = {}
        try:
            for start in range(0, len(names), DELETE_MAX):
                replies |= await self._delete(names[start : start + DELETE_MAX])
        finally:
            for name, answer in batch.items():
                if not answer.done():
                    answer.set_result(replies.get(name, Reply(Answer.CANCELLED)))

    async def _delete(self, names: list[str]) -> dict[str, Reply]:
        if len(names) == 1:
            return {names[0]: await self._client.delete(names[0])}
        try:
            failed = await self._in_thread(self._control.remove_many, names)
        except S3Error as error:
            if error.answer not in (Answer.UNSUPPORTED, Answer.INVALID):
                return dict.fromkeys(names, Reply(error.answer, error.status))
            self.is_bulk = False
            single = await asyncio.gather(*map(self._client.delete, names))
            return dict(zip(names, single, strict=True))
        return {name: Reply(failed.get(name, Answer.OK)) for name in names}
