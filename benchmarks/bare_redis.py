"""A Redis server spoken to over bare sockets, as the measure of what it and the network do at this moment."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Final

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_tools.bench.lane import Step, Verb

PATIENCE_SECONDS: Final = 60
_PREFIX: Final = b"bare/"
_LINE_BYTES: Final = 64


class BareRedis:
    """Moves the same bytes between the same memory and the server: `depth` connections, which stay, each with a thread that
    sends one command after the other and looks at nothing but that it worked.  Whatever else an adapter does is missing.

    Use `bare_redis`, which ends threads and connections."""

    name: Final = "raw sockets"

    def __init__(self, lines: Sequence[Line], threads: ThreadPoolExecutor) -> None:
        """A thread for each line."""
        self._lines = lines
        self._threads = threads

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when the server does not do what it was asked for, or nothing for too long."""
        left = _Shared(iter(steps))
        cpu, start_time = time.process_time(), time.perf_counter()
        working = [self._threads.submit(_work, line, left) for line in self._lines]
        wait(working)
        seconds, busy = time.perf_counter() - start_time, time.process_time() - cpu
        for each in working:
            try:
                each.result()
            except OSError as error:
                raise BenchmarkError(f"{self.name}: {error}") from None
        gigabytes = sum(step.buffer.length for step in steps) / 1e9
        return Speed(gigabytes / seconds, busy / gigabytes)

    def clear(self) -> None:
        """Take away everything that was stored."""
        self._lines[0].clear()


class _Shared:
    """The steps that were not taken yet."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self._lock = threading.Lock()  # guards the iterator

    def take(self) -> Step | None:
        with self._lock:
            return next(self._steps, None)


def _work(line: Line, left: _Shared) -> None:
    while (step := left.take()) is not None:
        line.move(step)


class Line:
    """One connection, used by one thread at a time.  Its socket blocks, so that one call of the kernel moves a whole value."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_SECONDS)
        self._socket.settimeout(None)  # Python's own time-outs make a socket that does not block
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PATIENCE_SECONDS, 0))
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
        self.send(_command(b"EVAL", script, b"0", _PREFIX + b"*"))
        self.expect(b"$2\r\nOK\r\n")

    def _store(self, name: bytes, value: memoryview) -> None:
        head = b"*3\r\n$3\r\nSET\r\n" + _bulk(name) + b"$%d\r\n" % len(value)
        self.send(head, value, b"\r\n")
        self.expect(b"+OK\r\n")

    def _load(self, name: bytes, into: memoryview) -> None:
        self.send(_command(b"GET", name))
        self.expect(b"$%d\r\n" % len(into))
        self.fill(into)
        self.expect(b"\r\n")

    def send(self, *parts: bytes | memoryview) -> None:
        left = [memoryview(part) for part in parts]
        while left:
            sent = self._socket.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def expect(self, answer: bytes) -> None:
        """Takes exactly that from the wire: nothing of what follows is read ahead.  What begins otherwise ends it at once:
        an error may be shorter, and nothing would follow."""
        head = memoryview(self._head)[: len(answer)]
        at = 0
        while at < len(head):
            at += self._some(head[at:])
            if head[:at] != answer[:at]:
                raise BenchmarkError(f"{BareRedis.name}: the server answers {bytes(head[:at])!r} and not {answer!r}")

    def fill(self, into: memoryview) -> None:
        at = 0
        while at < len(into):
            at += self._some(into[at:], socket.MSG_WAITALL)

    def _some(self, into: memoryview, flags: int = 0) -> int:
        got = self._socket.recv_into(into, 0, flags)
        if not got:
            raise ConnectionResetError("the server closed the connection")
        return got


def bare_redis(host: str, port: int, depth: int, undo: ExitStack) -> BareRedis:
    """Connected; `undo` ends it.  Raises BenchmarkError."""
    lines: list[Line] = []
    try:
        for _ in range(depth):
            lines.append(Line(host, port))
            undo.callback(lines[-1].close)
    except OSError as error:
        raise BenchmarkError(f"{BareRedis.name}: {host}:{port} cannot be reached: {error}") from None
    return BareRedis(lines, undo.enter_context(ThreadPoolExecutor(depth, "bare-redis")))


def _command(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(map(_bulk, arguments))


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)
