"""The thread that NIXL belongs to, and coroutines that wait for it.

NIXL tells nobody when a transfer has ended; it has to be asked, and some backends move bytes only while they are.  One thread
does all of that: it sleeps while nothing is under way, and otherwise asks again after a pause that begins at 20 us, doubles up
to 1 ms while nothing ends, and is cut short by whatever is asked for next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from lmcache_l2_nixl.agent import Extent, Handle, NixlAgent, Registration, Segment

PAUSE_SECONDS: Final = 20e-6
PAUSE_SECONDS_MAX: Final = 1e-3
RETRY_SECONDS: Final = 0.1
"""After a fault of the thread's own, which is logged."""

Value = TypeVar("Value")


class Transfer(NamedTuple):
    """Bytes between registered memory and a place.  `registers`: the place is registered for this transfer alone."""

    writes: bool
    memory: Extent
    segment: Segment
    place: Extent
    registers: bool = False


class _Flight:
    """A transfer from its registration until nothing touches its memory any more.  Belongs to the thread."""

    __slots__ = ("_error", "_handle", "_registration", "ended", "transfer")

    def __init__(self, transfer: Transfer, ended: Future[None]) -> None:
        self.transfer = transfer
        self.ended = ended
        self._handle: Handle | None = None
        self._registration: Registration | None = None
        self._error: Exception | None = None

    def begin(self, agent: NixlAgent) -> None:
        writes, memory, segment, place, registers = self.transfer
        try:
            if registers:
                self._registration = agent.register(segment, [place])
            self._handle = agent.prepare(writes=writes, memory=memory, segment=segment, place=place)
            agent.begin(self._handle)
        except Exception as error:  # noqa: BLE001 - NIXL's bindings raise what they like, and it is this transfer's alone
            self._error = error

    def step(self, agent: NixlAgent) -> bool:
        """True: it is over, and NIXL has let go of it; asked again, it is still."""
        if self._handle is not None:
            if self._error is None and not self._has_ended(agent, self._handle):
                return False
            if not agent.let_go(self._handle):
                return False
            self._handle = None
        if self._registration is not None:
            registration, self._registration = self._registration, None
            try:
                agent.deregister(registration)
            except Exception as error:  # noqa: BLE001 - as above
                self._error = self._error or error
        return True

    def _has_ended(self, agent: NixlAgent, handle: Handle) -> bool:
        try:
            return agent.has_ended(handle)
        except Exception as error:  # noqa: BLE001 - as above
            self._error = error
            return True

    def tell(self) -> None:
        if self._error is not None:
            self.ended.set_exception(self._error)
        else:
            self.ended.set_result(None)

    @property
    def has_failed(self) -> bool:
        return self._error is not None


class TransferThread:
    """A daemon thread with one NIXL agent.  Its methods may be called from any thread; coroutines from any loop.

    **A cancellation passes only when what was begun has ended**: until then the memory is lent, and may be written."""

    def __init__(self, name: str, log: logging.Logger, open_agent: Callable[[], NixlAgent]) -> None:
        """Waits until the agent is open, on the thread; raises what that raises."""
        self._log = log
        self._name = name
        self._inbox: SimpleQueue[Callable[[NixlAgent], None] | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the one below, and that nothing is put in behind the end
        self._closed = False
        # Belong to the thread; others read the counts.
        self._flights: list[_Flight] = []
        self._is_ending = False
        self._counts = dict.fromkeys(("transfers", "failed_transfers", "bytes_read", "bytes_written"), 0)
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(open_agent, opened), name=name, daemon=True)
        self._thread.start()
        opened.result()

    def call(self, function: Callable[[NixlAgent], Value]) -> Future[Value]:
        """Have the thread call this between two looks at its transfers, so let it be short.  Raises RuntimeError after
        `close`."""
        result: Future[Value] = _uncancellable()
        self._put(partial(_run_into, result, function))
        return result

    def submit(self, transfer: Transfer) -> Future[None]:
        """Ends when nothing touches the memory any more, with OSError where the transfer failed.  What is not an error says
        that NIXL takes it for done: whoever reads checks what came.  Raises RuntimeError after `close`."""
        flight = _Flight(transfer, _uncancellable())
        self._put(partial(self._take_off, flight))
        return flight.ended

    async def move(self, transfers: Sequence[Transfer]) -> None:
        """All of them at the same time; returns, or raises OSError, when all have ended."""
        await _all_ended([self.submit(transfer) for transfer in transfers])

    async def do(self, function: Callable[[NixlAgent], Value]) -> Value:
        """`call`, waited for."""
        called = self.call(function)
        await _all_ended([called])
        return called.result()

    def close(self, seconds: float) -> bool:
        """Let what is under way end, and the agent with it.  False where that takes longer: memory may be touched still."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def counters(self) -> Mapping[str, int]:
        """Since the start: `transfers` that have ended, `failed_transfers` of them, `bytes_read`, `bytes_written`; and
        `transfers_in_flight` now."""
        return {**self._counts, "transfers_in_flight": len(self._flights)}

    # --- on the thread

    def _put(self, order: Callable[[NixlAgent], None]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} was closed")
            self._inbox.put(order)

    def _run(self, open_agent: Callable[[], NixlAgent], opened: Future[None]) -> None:
        try:
            agent = open_agent()
        except BaseException as error:  # noqa: BLE001 - it is raised where the constructor waits
            opened.set_exception(error)
            return
        opened.set_result(None)
        pause = PAUSE_SECONDS
        while self._flights or not self._is_ending:
            try:
                pause = PAUSE_SECONDS if self._turn(agent, pause) else min(2 * pause, PAUSE_SECONDS_MAX)
            except Exception:  # noqa: BLE001 - a thread's top: its transfers go on
                self._log.exception("a turn of the nixl thread raised thread=%s", self._name)
                time.sleep(RETRY_SECONDS)

    def _turn(self, agent: NixlAgent, pause: float) -> bool:
        """Take what was asked for, and look at what is under way.  True where there was anything."""
        orders = self._orders(pause)
        for order in orders:
            order(agent)
        going: list[_Flight] = []
        ended: list[_Flight] = []
        for flight in self._flights:
            (ended if flight.step(agent) else going).append(flight)
        self._flights = going
        for flight in ended:
            self._count(flight)
            flight.tell()
        return bool(orders or ended)

    def _orders(self, pause: float) -> list[Callable[[NixlAgent], None]]:
        """Waits for one, as long as nothing is under way, and no longer than the pause otherwise."""
        orders: list[Callable[[NixlAgent], None]] = []
        try:
            order = self._inbox.get(timeout=pause if self._flights or self._is_ending else None)
            while True:
                if order is None:
                    self._is_ending = True
                else:
                    orders.append(order)
                order = self._inbox.get_nowait()
        except Empty:
            return orders

    def _take_off(self, flight: _Flight, agent: NixlAgent) -> None:
        self._flights.append(flight)  # first: whatever is raised, it is looked after
        flight.begin(agent)

    def _count(self, flight: _Flight) -> None:
        self._counts["transfers"] += 1
        if flight.has_failed:
            self._counts["failed_transfers"] += 1
        else:
            self._counts["bytes_written" if flight.transfer.writes else "bytes_read"] += flight.transfer.memory.length


def _uncancellable() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _run_into(result: Future[Value], function: Callable[[NixlAgent], Value], agent: NixlAgent) -> None:
    try:
        result.set_result(function(agent))
    except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
        result.set_exception(error)


async def _all_ended(futures: Sequence[Future[Any]]) -> None:
    """Until all have ended; raises the first error then, or the cancellation that came meanwhile."""
    waiting = [asyncio.wrap_future(future) for future in futures]
    cancellation: asyncio.CancelledError | None = None
    while not all(future.done() for future in waiting):
        try:
            await asyncio.wait(waiting)  # which does not cancel what it waits for
        except asyncio.CancelledError as error:
            cancellation = error
    try:
        faults = [fault for future in waiting if (fault := future.exception()) is not None]
        if cancellation is not None:
            raise cancellation
        if faults:
            raise faults[0]
    finally:
        del cancellation, waiting  # they hold this frame
