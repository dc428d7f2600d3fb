"""A Redis server spoken to over bare sockets, as the measure of what it and the network do at this moment."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_core.app.bench.lane import Step, Verb

_PREFIX: Final = b"bare/"
_LINE_BYTES: Final = 64
_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class BareRedis:
    """Moves the same bytes between the same memory and the server: `depth` connections, each with a thread that sends one
    command after the other and looks at nothing but that it worked.  Whatever else an adapter does is missing."""

    host: str
    port: int
    depth: int

    name = "raw sockets"

    def run(self, steps: Sequence[Step]) -> Speed:
        """Connections are made before the clock runs.  Raises BenchmarkError when one fails."""
        lines = [_Line(self.host, self.port) for _ in range(min(self.depth, len(steps)))]
        left = iter(steps)
        taking = threading.Lock()  # guards the iterator
        faults: list[Exception] = []

        def work(line: _Line) -> None:
            try:
                while True:
                    with taking:
                        step = next(left, None)
                    if step is None:
                        return
                    line.move(step)
            except Exception as error:  # noqa: BLE001 - raised below, where the caller is
                faults.append(error)

        threads = [threading.Thread(target=work, args=(line,), daemon=True) for line in lines]
        cpu, begun = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_SECONDS_MAX)
        seconds, busy = time.perf_counter() - begun, time.process_time() - cpu
        if any(thread.is_alive() for thread in threads):
            raise BenchmarkError(f"{self.name}: {self.host}:{self.port} did not answer within {_SECONDS_MAX:g} s")
        for line in lines:
            line.close()
        if faults:
            raise BenchmarkError(f"{self.name}: {faults[0]}")
        gigabytes = sum(step.buffer.length for step in steps) / 1e9
        return Speed(gigabytes / seconds, busy / gigabytes)

    def clear(self) -> None:
        """Take away everything that was stored."""
        line = _Line(self.host, self.port)
        try:
            line.clear()
        finally:
            line.close()


class _Line:
    """One connection, used by one thread."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=_SECONDS_MAX)
        except OSError as error:
            raise BenchmarkError(f"{host}:{port} cannot be reached: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = bytearray(_LINE_BYTES)

    def close(self) -> None:
        self._socket.close()

    def move(self, step: Step) -> None:
        """Raises BenchmarkError for an answer that it does not expect, OSError."""
        name = _PREFIX + step.key.object_id.hex().encode()
        if step.verb is Verb.STORE:
            self._store(name, step.buffer.view)
        else:
            self._load(name, step.buffer.view)

    def clear(self) -> None:
        """By a script: this side has no parser for lists of names."""
        script = b"for _, n in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('UNLINK', n) end return 'OK'"
        self._socket.sendall(_command(b"EVAL", script, b"0", _PREFIX + b"*"))
        self._expect(b"$2\r\nOK\r\n")

    def _store(self, name: bytes, value: memoryview) -> None:
        head = b"*3\r\n$3\r\nSET\r\n" + _bulk(name) + b"$%d\r\n" % len(value)
        left = [memoryview(head), value, memoryview(b"\r\n")]
        while left:
            sent = self._socket.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]
        self._expect(b"+OK\r\n")

    def _load(self, name: bytes, into: memoryview) -> None:
        self._socket.sendall(_command(b"GET", name))
        self._expect(b"$%d\r\n" % len(into))
        at = 0
        while at < len(into):
            got = self._socket.recv_into(into[at:])
            if not got:
                raise BenchmarkError("the server closed the connection")
            at += got
        self._expect(b"\r\n")

    def _expect(self, answer: bytes) -> None:
        """Takes exactly that from the wire: nothing of what follows is read ahead."""
        head = memoryview(self._head)[: len(answer)]
        at = 0
        while at < len(head):
            got = self._socket.recv_into(head[at:])
            if not got or head[: at + got] != answer[: at + got]:
                raise BenchmarkError(f"the server answers {bytes(head[: at + got])!r} and not {answer!r}")
            at += got


def _command(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(map(_bulk, arguments))


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)
