"""The bytes of what peers have leased: read through their routes, and compared with key, header and digest."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lmcache_core import (
    BorrowedBuffer,
    BuffersReleased,
    JobDone,
    JobId,
    LoadItem,
    Outcome,
    RemoteRead,
    Route,
    TransferChannel,
    check,
)
from lmcache_p2p.messages import lease_secret
from lmcache_p2p.peer import MARGIN_SECONDS, HeldLease, Pin

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 5.0
CHECKERS: Final = 2
"""Threads that compute digests of what was read."""


class Transfers:
    """Belongs to the reader's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channels: Mapping[str, TransferChannel]) -> None:
        self._loop, self._channels = loop, channels
        self._checking = ThreadPoolExecutor(CHECKERS, "p2p-check")
        self._jobs: dict[tuple[str, JobId], asyncio.Future[JobDone]] = {}
        self._borrowed: dict[tuple[str, JobId], JobDone] = {}
        """Those whose buffers may still be written to."""

    def start(self) -> None:
        for name, channel in self._channels.items():
            self._loop.add_reader(channel.completions().fileno(), self._take_completions, name, channel)

    async def ended(self) -> bool:
        """Once the routes are closed: False where jobs do not end, whose buffers stay borrowed then."""
        if not self._jobs:
            return True
        _, pending = await asyncio.wait(self._jobs.values(), timeout=CLOSE_SECONDS)
        if pending:
            logger.error("reads from peers did not end, and their buffers stay borrowed jobs=%d", len(pending))
        return not pending

    def stop(self) -> None:
        for channel in self._channels.values():
            self._loop.remove_reader(channel.completions().fileno())

    def shutdown(self) -> None:
        """After the loop's last turn."""
        self._checking.shutdown(wait=False, cancel_futures=True)

    async def read(
        self,
        lease: HeldLease,
        items: Sequence[LoadItem],
        places: Sequence[int],
        pins: Mapping[int, Pin],
        outcomes: list[Outcome],
        report: Any,
    ) -> None:
        """Objects of one lease.  Their outcomes are in place when it returns, and their buffers are not touched any more."""
        peer = lease.peer
        fitting = [place for place in places if items[place].buffer.takes(pins[place].address.size)]
        for place in set(places) - set(fitting):
            outcomes[place] = Outcome.DAMAGED  # the same key, another size: it does not fit here
            peer.counts["submitted"] += 1
            peer.damaged()
        reads = []
        for place in fitting:
            buffer = items[place].buffer
            exact = BorrowedBuffer(buffer.region, buffer.offset, pins[place].address.size)
            reads.append(RemoteRead(pins[place].address.offset, exact))
        found: Sequence[Outcome] = ()
        while fitting and lease.is_live and (route := peer.route) is not None:
            peer.counts["unread"] += len(found)  # by the channel before
            found = await self._read_by(route, lease, reads, [items[place] for place in fitting], fitting, report)
            if peer.keeps(route, found) or not await peer.leave(route):
                break
        for place, outcome in zip(fitting, found, strict=False):  # nothing is found without a route
            outcomes[place] = outcome
            if outcome is Outcome.DONE:
                peer.counts["read"] += 1
                peer.counts["read_bytes"] += items[place].buffer.length
            elif outcome in (Outcome.DAMAGED, Outcome.FOREIGN):
                peer.damaged()
            else:
                peer.counts["unread"] += 1

    async def _read_by(
        self,
        route: Route,
        lease: HeldLease,
        reads: Sequence[RemoteRead],
        items: Sequence[LoadItem],
        places: Sequence[int],
        report: Any,
    ) -> list[Outcome]:
        """The outcomes of a job, checked."""
        peer, size = lease.peer, sum(read.buffer.length for read in reads)
        peer.bytes_in_flight += size
        peer.counts["submitted"] += len(reads)
        start = time.monotonic()
        try:
            done = await self._transferred(lease, route, reads, places, report)
        finally:
            peer.bytes_in_flight -= size
        found = list(done.outcomes)
        whole = [number for number, outcome in enumerate(found) if outcome is Outcome.DONE]
        digests = dict(enumerate(getattr(done, "digests", ())))
        read = [(items[number], digests.get(number)) for number in whole]
        good = await self._loop.run_in_executor(self._checking, _checked, read)
        for number, outcome in zip(whole, good, strict=True):
            found[number] = outcome
        peer.counts["read_seconds"] += time.monotonic() - start
        return found

    async def _transferred(
        self, lease: HeldLease, route: Route, reads: Sequence[RemoteRead], places: Sequence[int], report: Any
    ) -> JobDone:
        """The outcome; the buffers are not touched any more."""
        number = route.submit_read(lease_secret(lease.session, lease.number), reads)
        name = lease.peer.channel
        future: asyncio.Future[JobDone] = self._loop.create_future()
        self._jobs[name, number] = future
        while True:
            seconds = lease.ends_at - MARGIN_SECONDS - time.monotonic()
            await asyncio.wait((future,), timeout=max(seconds, 0.0))
            if future.done():
                return future.result()
            if not lease.is_live:
                for place in places:
                    report(place, Outcome.MISSING)
                lease.peer.failed("a lease could not be renewed while it was read")
                return await future

    def _take_completions(self, name: str, channel: TransferChannel) -> None:
        for completion in channel.completions().drain():
            if isinstance(completion, JobDone) and not completion.released:
                self._borrowed[name, completion.job] = completion
                continue
            if isinstance(completion, BuffersReleased):
                completion = self._borrowed.pop((name, completion.job))
            # It is there: `submit_read` is called on this loop, too, and its job was noted in the same turn.
            future = self._jobs.pop((name, completion.job))
            if not future.done():
                future.set_result(completion)


def _checked(read: Sequence[tuple[LoadItem, bytes | None]]) -> list[Outcome]:
    """`read`: each with the digest of its payload, where the channel has computed it."""
    return [check(item.buffer.view, item.key, digest, at_most=item.buffer.at_most).outcome for item, digest in read]
