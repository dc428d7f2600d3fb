"""The reader's side: an event loop whose coroutines are the jobs, on an agent of its own.

**Why an agent of its own.** A read from a peer that was stopped does not end, and UCX cannot call it back: NIXL calls it
released while its bytes may still arrive.  Its buffers are safe when the agent has been closed.  So that is what happens to
reads without progress.  The other jobs of that moment fail with them, and the next one opens another agent.  The owner's agent,
which peers read from, goes on."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Final

from lmcache_core import ChannelContext, Job, JobId, JobTable, LMCacheError, Outcome, RemoteRead, Route
from lmcache_nixl_agent.flights import Transfer
from lmcache_p2p_nixl.description import Description, pieces_of, spans
from lmcache_p2p_nixl.reading_agent import ReadingAgent

PART_BYTES: Final = 32 << 20
"""More or less: what has to arrive within the limit to count as progress."""
PART_TRANSFERS_MAX: Final = 64
CUT_SECONDS: Final = 5.0


class NixlRoute(Route):
    def __init__(self, reader: Reader, about: Description) -> None:
        self.about: Final = about
        self._reader = reader
        self.is_closed = False
        self.jobs = 0
        """Under way.  Belongs to the loop, as those below."""
        self.has_failed = False
        """The next job connects anew."""
        self.moved_at = 0.0
        """When bytes arrived last."""

    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        return self._reader.submit(self, reads)

    def close(self) -> None:
        """Reads under way come to their end: within the limit without progress, since to cut them cuts all others."""
        if not self.is_closed:
            self.is_closed = True
            self._reader.left(self)


class Reader:
    """`connect`, `submit`, `left` and `close` may be called by any thread; the rest belongs to the loop."""

    def __init__(self, context: ChannelContext, limit_seconds: float, jobs: JobTable) -> None:
        self._context, self._limit, self._jobs = context, limit_seconds, jobs
        self._numbers = itertools.count(1)
        self._agents: list[ReadingAgent] = []
        """Those whose threads run."""
        self._agent: ReadingAgent | None = None
        self._opened()  # a lookup that connects has no time for it
        self._routes: set[NixlRoute] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()  # guards that nothing is given to the loop behind its end
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="p2p-nixl", daemon=True)
        self._thread.start()

    def connect(self, about: Description) -> NixlRoute:
        """Blocks for some seconds.  Raises LMCacheError."""
        with self._lock:
            if self._closed:
                raise LMCacheError("the channel is closed")
            connected = asyncio.run_coroutine_threadsafe(self._connect(about), self._loop)
        try:
            return connected.result()
        except (OSError, RuntimeError) as error:
            raise LMCacheError(f"it is not reached by nixl: {error}") from None

    def submit(self, route: NixlRoute, reads: Sequence[RemoteRead]) -> JobId:
        job = self._jobs.open(len(reads), lends_buffers=True)
        with self._lock:
            if not (self._closed or route.is_closed):
                self._loop.call_soon_threadsafe(self._begin, route, job, reads)
                return job.id
        self._settle(job, [Outcome.FAILED] * len(reads))
        return job.id

    def left(self, route: NixlRoute) -> None:
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._leave_if_idle, route)

    def close(self, seconds: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(self._end(seconds), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for agent in self._agents:
            agent.close(CUT_SECONDS)

    # --- on the loop

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        if self._agent is not None:
            self._cut(self._agent)
        while self._running:
            await asyncio.wait(self._running)

    def _opened(self) -> ReadingAgent:
        """Blocks the loop while NIXL starts, when no other read is under way."""
        if self._agent is None:
            self._agent = ReadingAgent(self._context, next(self._numbers))
            self._agents.append(self._agent)
        return self._agent

    def _cut(self, agent: ReadingAgent) -> None:
        agent.cut()
        if self._agent is agent:
            self._agent = None
            self._start(self._release(agent))

    async def _release(self, agent: ReadingAgent) -> None:
        if await agent.ended(CUT_SECONDS):
            self._agents.remove(agent)

    async def _connect(self, about: Description) -> NixlRoute:
        agent, route = self._opened(), NixlRoute(self, about)
        self._routes.add(route)
        route.jobs += 1
        try:
            await agent.join(about)
            await agent.check_open(about)
        except (OSError, LMCacheError, RuntimeError):
            route.is_closed = True
            raise
        finally:
            route.jobs -= 1
            self._leave_if_idle(route)
        return route

    def _begin(self, route: NixlRoute, job: Job, reads: Sequence[RemoteRead]) -> None:
        self._start(self._do(route, job, reads))

    async def _do(self, route: NixlRoute, job: Job, reads: Sequence[RemoteRead]) -> None:
        outcomes = [Outcome.FAILED] * len(reads)
        route.jobs += 1
        try:
            inside = [0 <= read.offset <= route.about.length - read.buffer.length for read in reads]
            read = await self._read(route, [read for read, fits in zip(reads, inside, strict=True) if fits])
            outcomes = [read if fits else Outcome.MISSING for fits in inside]
        except (OSError, LMCacheError, RuntimeError) as error:
            self._context.logger.debug("a job was not read error=%s", error)
            route.has_failed = True
        finally:
            route.jobs -= 1
            self._settle(job, outcomes)
            self._leave_if_idle(route)

    async def _read(self, route: NixlRoute, reads: Sequence[RemoteRead]) -> Outcome:
        """Of all of them.  The buffers are not touched any more.  Raises OSError, LMCacheError and RuntimeError."""
        about, agent = route.about, self._opened()
        await agent.join(about)
        own = {piece for _, buffer in reads for piece in pieces_of(buffer.offset, buffer.length, agent.piece_bytes)}
        remote = {piece for offset, buffer in reads for piece in pieces_of(offset, buffer.length, about.piece_bytes)}
        await agent.register(own)
        if not await agent.learn(about, remote):
            return Outcome.MISSING
        parts = [span for read in reads for span in spans(read, agent.piece_bytes, about.piece_bytes)]
        moving = [self._loop.create_task(agent.thread.move(part)) for part in _parts(agent.transfers(about, parts))]
        open_still = self._loop.create_task(agent.check_open(about))
        await self._ended(route, agent, moving)
        await asyncio.wait((open_still,))
        if errors := [error for each in (open_still, *moving) if (error := each.exception()) is not None]:
            raise errors[0]
        return Outcome.DONE

    async def _ended(self, route: NixlRoute, agent: ReadingAgent, moving: Sequence[asyncio.Task[None]]) -> None:
        """Waits for these, and cuts them off where nothing arrives by this route for too long."""
        route.moved_at, left = time.monotonic(), set(moving)
        while left:
            done, left = await asyncio.wait(left, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if done:
                route.moved_at = time.monotonic()
            elif time.monotonic() - route.moved_at >= self._limit:
                self._context.logger.warning("reads without progress are cut off seconds=%.0f", self._limit)
                route.is_closed = True
                self._cut(agent)
                await asyncio.wait(left)
                return

    def _leave_if_idle(self, route: NixlRoute) -> None:
        if route.jobs or not (route.is_closed or route.has_failed):
            return
        route.has_failed = False
        if route.is_closed:
            self._routes.discard(route)
        if self._agent is not None:
            about = route.about
            self._start(self._agent.leave(about, lambda: any(o.jobs and o.about == about for o in self._routes)))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _settle(self, job: Job, outcomes: Sequence[Outcome]) -> None:
        for place, outcome in enumerate(outcomes):
            self._jobs.settle(job, place, outcome)


def _parts(transfers: Sequence[Transfer]) -> list[list[Transfer]]:
    """In order, each of some transfers and not too many bytes."""
    parts: list[list[Transfer]] = []
    size = PART_BYTES
    for transfer in transfers:
        if size >= PART_BYTES or len(parts[-1]) >= PART_TRANSFERS_MAX:
            parts.append([])
            size = 0
        parts[-1].append(transfer)
        size += transfer.memory.length
    return parts
