"""A TCP proxy before any backend, whose faults a test switches while connections are open."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.remote.loop_server import HOST, READ_BYTES, TIMEOUT_SECONDS, LoopServer, reset

IDLE_SECONDS: Final = 0.05
"""A line that was silent for so long begins a new burst."""
THROTTLED_PIECES_A_SECOND: Final = 20


class Way(Enum):
    REQUESTS = "requests"
    """From the client to the backend."""
    ANSWERS = "answers"
    """From the backend to the client."""


BOTH: Final = frozenset(Way)


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of the faults.  Each bears on the directions of `ways`; bytes are counted for each connection and
    direction, from the moment when the fault began or the connection was made."""

    ways: frozenset[Way] = BOTH


@dataclass(frozen=True, slots=True)
class Nothing(Fault):
    """Everything passes."""


@dataclass(frozen=True, slots=True)
class Refuse(Fault):
    """Connections are reset, and new ones refused by the kernel."""


@dataclass(frozen=True, slots=True)
class Silence(Fault):
    """Connections are accepted and stay open, and nothing passes.  What was held passes when the fault ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """The first byte after a silence comes so much later, and the first one of each connection under this fault."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Fault):
    """No more than this passes in each direction, of all connections together."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAfter(Fault):
    """RST to both sides after that number of bytes of one direction."""

    passed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAfter(Fault):
    """An orderly end after that number of bytes of one direction, in the middle of whatever was being said."""

    passed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Fault):
    """One bit of every so-manieth byte is another one.  Choose less than half of what a transfer has, and at least one
    falls into it, whatever is said around it."""

    every_bytes: int


class _EndedError(Exception):
    """The connection is to end for both sides, orderly or not."""

    def __init__(self, *, orderly: bool) -> None:
        super().__init__()
        self.orderly = orderly


class TcpProxy(LoopServer):
    """Passes bytes between clients and `port` on this machine, with the fault that was switched on last."""

    def __init__(self, backend_port: int) -> None:
        super().__init__()
        self._backend_port = backend_port
        self._fault: Fault = Nothing()
        self._changed = asyncio.Event()  # of the fault that holds now; set when another one takes its place
        self._passed = dict.fromkeys(Way, 0)
        self._free_at = dict.fromkeys(Way, 0.0)  # when a throttled line has sent what it was given
        self._progress = asyncio.Event()  # set, and replaced, whenever bytes pass

    def switch(self, fault: Fault) -> None:
        """From the return of this on, the fault holds for every byte that passes, of open connections, too."""
        self.call(self._switch(fault))

    def passed(self, way: Way) -> int:
        """Bytes that went on to their receiver so far."""
        return self._passed[way]

    def wait_passed(self, way: Way, more_bytes: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Block until that number of further bytes has passed; TimeoutError where that never happens."""
        self.call(asyncio.wait_for(self._wait_passed(way, self._passed[way] + more_bytes), timeout_seconds))

    async def _switch(self, fault: Fault) -> None:
        self._fault = fault
        self._free_at = dict.fromkeys(Way, 0.0)
        self._changed.set()
        self._changed = asyncio.Event()
        await (self.refuse() if isinstance(fault, Refuse) else self.listen())

    async def _wait_passed(self, way: Way, total: int) -> None:
        while self._passed[way] < total:
            await self._progress.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while isinstance(self._fault, Silence):
            await self._changed.wait()
        from_backend, to_backend = await asyncio.open_connection(HOST, self._backend_port)
        pumps = [
            asyncio.create_task(self._pump(reader, to_backend, Way.REQUESTS)),
            asyncio.create_task(self._pump(from_backend, writer, Way.ANSWERS)),
        ]
        try:
            await asyncio.gather(*pumps)
        except _EndedError as end:
            if end.orderly:
                for each in (writer, to_backend):
                    each.close()
                await asyncio.gather(writer.wait_closed(), to_backend.wait_closed(), return_exceptions=True)
        finally:
            for pump in pumps:
                pump.cancel()
            reset(to_backend)  # before the wait, which a proxy that ends cancels
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way) -> None:
        counted_for: Fault | None = None
        passed = 0
        last_passed_at = 0.0
        while data := await source.read(READ_BYTES):
            delayed = False
            while data:
                fault, changed = self._fault, self._changed
                if fault is not counted_for:
                    counted_for, passed, last_passed_at = fault, 0, 0.0
                piece = data
                match fault if way in fault.ways else Nothing():
                    case Refuse():
                        raise _EndedError(orderly=False)
                    case Silence():
                        await changed.wait()
                        continue
                    case Delay(seconds=seconds) if not delayed and time.monotonic() - last_passed_at > IDLE_SECONDS:
                        delayed = True
                        await _either(changed, seconds)
                        continue
                    case Throttle(bytes_per_second=rate):
                        piece = data[: max(rate // THROTTLED_PIECES_A_SECOND, 1)]
                        if await _either(changed, self._busy_seconds(way, len(piece) / rate)):
                            continue
                    case ResetAfter(passed_bytes=limit) | CutAfter(passed_bytes=limit):
                        piece = data[: max(limit - passed, 0)]
                    case Flip(every_bytes=every):
                        piece = _flipped(data, passed, every)
                self._count(way, len(piece))  # before anybody can have received it
                sink.write(piece)
                await sink.drain()
                passed += len(piece)
                last_passed_at = time.monotonic()
                if len(piece) < len(data) and isinstance(fault, ResetAfter | CutAfter):
                    raise _EndedError(orderly=isinstance(fault, CutAfter))
                data = data[len(piece) :]
        if sink.can_write_eof():
            sink.write_eof()

    def _busy_seconds(self, way: Way, seconds: float) -> float:
        """Take the line for that time, after its present user; in how many seconds that is over."""
        now = time.monotonic()
        self._free_at[way] = max(self._free_at[way], now) + seconds
        return self._free_at[way] - now

    def _count(self, way: Way, size: int) -> None:
        self._passed[way] += size
        self._progress.set()
        self._progress = asyncio.Event()


async def _either(changed: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until the fault changed; True when it did."""
    try:
        async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 can lose a cancellation
            await changed.wait()
    except TimeoutError:
        return False
    return True


def _flipped(data: bytes, passed: int, every: int) -> bytes:
    """`data`, which begins after `passed` bytes, with a bit turned in each byte whose number is a multiple of `every`."""
    altered = bytearray(data)
    for place in range(-passed % every, len(altered), every):
        if passed + place:  # the first byte of all begins what is said, and hides the rest
            altered[place] ^= 0x10
    return bytes(altered)
