"""The `lm` adapter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, ObjectKey, Outcome, ProtocolError, ResourceError
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_l2_lm import store_calls
from lmcache_l2_lm.config import LmSettings
from lmcache_l2_lm.doctor import REMEDY
from lmcache_l2_lm.frames import LENGTH_MAX, key_of
from lmcache_l2_lm.line import Line, connect

TOGETHER_MAX: Final = 256
"""Lookups that are sent before their answers are read."""
DAMAGED_MAX: Final = 65_536
"""Objects that are remembered as damaged; an older one is loaded in vain once more."""

Value = TypeVar("Value")
Work = Callable[[Line, float], Value]
"""What a thread does over a connection, until a moment of the monotonic clock at most."""


class _Question(NamedTuple):
    name: bytes
    answer: asyncio.Future[bool]


class LmAdapter(AsyncL2Adapter):
    """Each object on its way has a thread and a connection, which moves it with few calls of the kernel.  Lookups go together
    over one connection more."""

    capabilities = Capability.SHARED | Capability.ANY_LENGTH | Capability.VERIFIES
    max_object_bytes = LENGTH_MAX

    def __init__(self, settings: LmSettings, context: AdapterContext) -> None:
        self._settings: Final = settings
        self._idle: Final[list[Line]] = []
        self._questions: Final[deque[_Question]] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._damaged: Final[dict[bytes, None]] = {}
        self._counts: Final = dict.fromkeys(("refused", "foreign", "damaged"), 0)
        super().__init__(context, settings.num_connections, settings.timeout_seconds)

    async def started(self) -> None:
        settings = self._settings
        try:
            self._idle.append(await self.in_thread(store_calls.open_line, settings, settings.connect_timeout_seconds))
        except (OSError, ProtocolError) as error:
            place = f"lm://{settings.host}:{settings.port}"
            raise ResourceError(f"{self.context.name}: {place}: {error}; {REMEDY}") from None

    async def stopped(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))
        self._close_idle()

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """A damaged object is replaced; another is not sent where it is there already."""
        replaces = key.object_id in self._damaged
        if not await self._on_a_line(partial(store_calls.put, key=key, buffer=buffer, replaces=replaces)):
            self._counts["refused"] += 1
            return Outcome.REJECTED
        self._damaged.pop(key.object_id, None)
        return Outcome.DONE

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = await self._on_a_line(partial(store_calls.get, key=key, buffer=buffer))
        if outcome in (Outcome.FOREIGN, Outcome.DAMAGED):
            self._counts[outcome.value] += 1
        return outcome

    async def contains(self, key: ObjectKey) -> bool:
        return key.object_id not in self._damaged and await self._exists(key)

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """The protocol removes nothing: a damaged object is not looked for until the next store replaces it."""
        if outcome is not Outcome.DAMAGED:
            return False
        self._damaged[key.object_id] = None
        if len(self._damaged) > DAMAGED_MAX:
            del self._damaged[next(iter(self._damaged))]
        return True

    def counters(self) -> Mapping[str, int]:
        return dict(self._counts)

    # How.

    async def _exists(self, key: ObjectKey) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(_Question(key_of(key), answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        batch: list[_Question] = []
        try:
            while self._questions:
                batch = [self._questions.popleft() for _ in range(min(TOGETHER_MAX, len(self._questions)))]
                names = [question.name for question in batch]
                try:
                    found = await self._on_a_line(partial(store_calls.exist, names=names))
                except (OSError, ProtocolError) as error:
                    _fail(batch, error)
                    continue
                for question, is_there in zip(batch, found, strict=True):
                    if not question.answer.done():  # or who asked has gone
                        question.answer.set_result(is_there)
        finally:
            self._asking = None
            gone = ConnectionError("the adapter is closed")
            _fail(batch, gone)
            _fail(self._questions, gone)
            self._questions.clear()

    async def _on_a_line(self, work: Work[Value]) -> Value:
        """The result of `work`, in a thread of its own.  A cancellation ends the connection, and passes when the thread uses
        nothing any more."""
        trip = _Trip(self._quiet_line())
        end = time.monotonic() + self._settings.timeout_seconds
        moving = asyncio.ensure_future(self.in_thread(self._move, trip, work, end))
        cancellation: asyncio.CancelledError | None = None
        while not moving.done():
            try:
                await asyncio.wait((moving,))  # which does not cancel what it waits for
            except asyncio.CancelledError as error:
                cancellation = error
                trip.abort()
        fault = moving.exception()
        try:
            if cancellation is not None or fault is not None:
                trip.close()
                if isinstance(fault, OSError):
                    self._close_idle()  # they were made before it, and are most likely gone, too
                raise cancellation or fault or AssertionError
            if trip.line is not None and not trip.line.is_closed:
                self._idle.append(trip.line)
            return moving.result()
        finally:
            del cancellation, fault, moving  # they hold this frame

    def _move(self, trip: _Trip, work: Work[Value], end: float) -> Value:
        """In a thread."""
        return work(trip.opened(self._settings), end)

    def _quiet_line(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_quiet:
                return line
            line.close()
        return None

    def _close_idle(self) -> None:
        for line in self._idle:
            line.close()
        self._idle.clear()


class _Trip:
    """The connection of one operation.  A thread uses it, and the loop may end that."""

    def __init__(self, line: Line | None) -> None:
        self._lock: Final = threading.Lock()  # guards the two below
        self.line = line
        self._is_aborted = False

    def opened(self, settings: LmSettings) -> Line:
        """Raises ConnectionError."""
        if self.line is not None:
            return self.line
        line = connect(settings.host, settings.port, settings.connect_timeout_seconds)
        with self._lock:
            if not self._is_aborted:
                self.line = line
                return line
        line.close()
        raise ConnectionError("the time of the operation is over")

    def abort(self) -> None:
        """Whatever the thread does with the connection ends at once."""
        with self._lock:
            self._is_aborted = True
            if self.line is not None:
                self.line.shutdown()

    def close(self) -> None:
        if self.line is not None:
            self.line.close()


def _fail(questions: list[_Question] | deque[_Question], error: Exception) -> None:
    for question in questions:
        if not question.answer.done():
            # An exception of its own for each: one that many raise at once grows a traceback of all of them.
            question.answer.set_exception(type(error)(str(error)))


def open_lm(settings: LmSettings, context: AdapterContext) -> LmAdapter:
    """Raises ResourceError where no store answers."""
    return LmAdapter(settings, context)
