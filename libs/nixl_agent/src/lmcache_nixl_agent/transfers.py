"""The thread that NIXL belongs to, and coroutines that wait for it.

NIXL does not notify when a transfer has ended; it has to be polled, and some backends move bytes only while they are.  One
thread does all of that: it sleeps while nothing is under way, and otherwise asks again after a pause that begins at 20 us,
doubles up to 1 ms while nothing ends, and is cut short by whatever is asked for next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from lmcache_nixl_agent.agent import NixlAgent
from lmcache_nixl_agent.flights import Flight, Journey, Transfer
from lmcache_nixl_agent.loop_mail import Awaited, LoopMail

PAUSE_SECONDS: Final = 20e-6
PAUSE_SECONDS_MAX: Final = 1e-3
RETRY_SECONDS: Final = 0.1
"""After a fault of the thread's own, which is logged."""
WAITING_PER_COMPLETION: Final = 4
TELL_SECONDS: Final = 10e-3
"""While at least this number of orders wait for each store that has ended, and the loop was woken recently, stores are reported
together: each wake-up hands over the interpreter and often the core, and behind a store there is nothing to compute that
could overlap with the next one.  Loads are reported one by one, since a digest does."""

Value = TypeVar("Value")
Order = Callable[[NixlAgent], None]


class TransferThread:
    """A daemon thread with one NIXL agent.  Its methods may be called from any thread; coroutines from any loop.

    **A cancellation passes only when what was begun has ended**: until then the memory is borrowed, and may be written."""

    def __init__(self, name: str, log: logging.Logger, open_agent: Callable[[], NixlAgent]) -> None:
        """Waits until the agent is open, on the thread; raises what that raises."""
        self._log = log
        self._name = name
        self._inbox: SimpleQueue[Order | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the one below, and that nothing is put in behind the end
        self._closed = False
        self._mail: LoopMail | None = None
        """Of the loop that asked last."""
        # Belong to the thread; others read the counts.
        self._orders: deque[Order] = deque()
        self._flights: list[Flight] = []
        self._is_ending = False
        self._unwoken: LoopMail | None = None
        """It has results that its loop was not woken for."""
        self._woke_at = time.monotonic()
        self._counts = dict.fromkeys(("transfers", "failed_transfers", "bytes_read", "bytes_written"), 0)
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(open_agent, opened), name=name, daemon=True)
        self._thread.start()
        opened.result()

    def call(self, function: Callable[[NixlAgent], Value]) -> Future[Value]:
        """Have the thread call this between two looks at its transfers, so let it be short.  Raises RuntimeError after
        `close`."""
        result: Future[Value] = _uncancellable()
        self._put(partial(self._call, result, function))
        return result

    def submit(self, transfer: Transfer) -> Future[None]:
        """Ends when nothing touches the memory any more, with OSError where the transfer failed.  What is not an error says
        that NIXL takes it for done: the reader checks the bytes.  Raises RuntimeError after `close`."""
        ended: Future[None] = _uncancellable()
        self._put(partial(self._depart, Journey([[transfer]], partial(_tell, ended))))
        return ended

    async def move(self, *groups: Sequence[Transfer]) -> None:
        """All of a group at the same time, and the next group when these have ended well; returns, or raises OSError, when all
        that were begun have ended."""
        mail, ended = self._awaited()
        try:
            is_store = all(transfer.writes for group in groups for transfer in group)
            tell = partial(self._tell_store if is_store else self._tell_load, mail, ended)
            self._put(partial(self._depart, Journey(groups, tell)))
            await ended
        finally:
            del ended  # its error would hold this frame, which holds it

    async def do(self, function: Callable[[NixlAgent], Value]) -> Value:
        """`call`, waited for."""
        mail, ended = self._awaited()
        try:
            self.call(function).add_done_callback(partial(_forward, mail, ended))
            value: Value = await ended
            return value
        finally:
            del ended  # as above

    def close(self, seconds: float) -> bool:
        """Let what is under way end, and the agent with it.  False where that takes longer: memory may be touched still."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cut(self) -> None:
        """End NIXL at once: what is under way fails, as does whatever is asked for later, and nothing touches any memory any
        more.  For backends whose transfers may never end, such as reads from a peer that was stopped: NIXL calls those of UCX
        released while bytes may still arrive.  `close` is due.  Raises RuntimeError after it."""
        self._put(self._cut)

    def counters(self) -> Mapping[str, int]:
        """Since the start: `transfers` that have ended, `failed_transfers` of them, `bytes_read`, `bytes_written`; and
        `transfers_in_flight` now."""
        return {**self._counts, "transfers_in_flight": len(self._flights)}

    def _awaited(self) -> tuple[LoopMail, Awaited]:
        loop = asyncio.get_running_loop()
        mail = self._mail
        if mail is None or mail.loop is not loop:
            self._mail = mail = LoopMail(loop)
        return mail, Awaited(loop=loop)

    def _put(self, order: Order) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} was closed")
            self._inbox.put(order)

    # --- on the thread

    def _run(self, open_agent: Callable[[], NixlAgent], opened: Future[None]) -> None:
        try:
            agent = open_agent()
        except BaseException as error:  # noqa: BLE001 - it is raised where the constructor waits
            opened.set_exception(error)
            return
        opened.set_result(None)
        pause = PAUSE_SECONDS
        while self._flights or self._orders or not self._is_ending:
            try:
                pause = PAUSE_SECONDS if self._turn(agent, pause) else min(2 * pause, PAUSE_SECONDS_MAX)
            except Exception:  # noqa: BLE001 - a thread's top: its transfers go on
                self._log.exception("a turn of the nixl thread raised thread=%s", self._name)
                time.sleep(RETRY_SECONDS)

    def _turn(self, agent: NixlAgent, pause: float) -> bool:
        """Take what was asked for, and look at what is under way.  True where there was anything."""
        self._fetch(pause)
        is_busy = bool(self._orders)
        try:
            while self._orders:
                self._orders.popleft()(agent)
            for flight in tuple(self._flights):
                is_busy |= self._step(flight, agent)
        finally:
            self._wake()
        return is_busy

    def _fetch(self, pause: float) -> None:
        """Waits for an order as long as nothing is under way, and no longer than the pause otherwise."""
        try:
            waits = not self._orders  # there are some behind a turn that raised
            order = self._inbox.get(waits, pause if self._flights or self._is_ending else None)
            while True:
                if order is None:
                    self._is_ending = True
                else:
                    self._orders.append(order)
                order = self._inbox.get_nowait()
        except Empty:
            return

    def _depart(self, journey: Journey, agent: NixlAgent) -> None:
        flights = journey.depart()
        self._flights += flights  # first: whatever is raised, they are looked after
        for flight in flights:
            flight.begin(agent)
        for flight in flights:  # many backends carry out what they can at once, and the waiter has more to do
            self._step(flight, agent)

    def _step(self, flight: Flight, agent: NixlAgent) -> bool:
        """True: it has ended, and what is to follow it was begun."""
        if not flight.step(agent):
            return False
        self._flights.remove(flight)
        self._count(flight)
        if flight.journey.arrived(flight.error):
            self._depart(flight.journey, agent)
        return True

    def _cut(self, agent: NixlAgent) -> None:
        for flight in self._flights:
            flight.abandon(agent)
        agent.close()

    def _call(self, result: Future[Value], function: Callable[[NixlAgent], Value], agent: NixlAgent) -> None:
        self._wake()  # first: this takes an unknown time
        _run_into(result, function, agent)

    def _tell_load(self, mail: LoopMail, ended: Awaited, error: Exception | None) -> None:
        self._post(mail, ended, error)
        self._wake()

    def _tell_store(self, mail: LoopMail, ended: Awaited, error: Exception | None) -> None:
        self._post(mail, ended, error)
        waiting = len(self._orders) + self._inbox.qsize()
        if waiting < WAITING_PER_COMPLETION * len(mail) or time.monotonic() - self._woke_at >= TELL_SECONDS:
            self._wake()

    def _post(self, mail: LoopMail, ended: Awaited, error: Exception | None) -> None:
        if self._unwoken is not mail:
            self._wake()
        self._unwoken = mail
        mail.post(ended, error)

    def _wake(self) -> None:
        mail, self._unwoken = self._unwoken, None
        if mail is not None:
            self._woke_at = time.monotonic()
            mail.wake()

    def _count(self, flight: Flight) -> None:
        self._counts["transfers"] += 1
        if flight.error is not None:
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
    except BaseException as error:  # noqa: BLE001 - it is raised in the waiter
        result.set_exception(error)


def _tell(ended: Future[None], error: Exception | None) -> None:
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _forward(mail: LoopMail, ended: Awaited, called: Future[Any]) -> None:
    error = called.exception()
    mail.post(ended, error, called.result() if error is None else None)
    mail.wake()
