"""`lmcache store-server` spoken to over bare sockets, as the measure of what it and the network do at this moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bare_redis import BareRedis, Line
from benchmarks.peer import BenchmarkError
from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE
from lmcache_devkit import free_port
from lmcache_l2_lm.frames import Answer, Request, bytes_form, pack_answer, pack_request
from lmcache_l2_lm.frames import Verb as Command
from lmcache_tools.bench.lane import Step, Verb

START_SECONDS: Final = 60.0


class LmLine(Line):
    """A PUT has no answer: what is asked behind it has."""

    def move(self, step: Step) -> None:
        key, value = f"bare@1@0@{step.key.object_id.hex()}@uint8".encode(), step.buffer.view
        if step.verb is Verb.STORE:
            self.send(
                pack_request(Request(Command.PUT, key, len(value), bytes_form(len(value)))),
                value,
                pack_request(Request(Command.EXIST, key)),
            )
            self.expect(pack_answer(Answer(True)))
        else:
            self.send(pack_request(Request(Command.GET, key)))
            self.expect(pack_answer(Answer(True, len(value), bytes_form(len(value)))))
            self.fill(value)

    def clear(self) -> None:
        """The store makes space by itself."""


def bare_lm(host: str, port: int, depth: int, undo: ExitStack) -> BareRedis:
    """Connected; `undo` ends it.  Raises BenchmarkError."""
    lines = []
    try:
        for _ in range(depth):
            lines.append(LmLine(host, port))
            undo.callback(lines[-1].close)
    except OSError as error:
        raise BenchmarkError(f"{BareRedis.name}: {host}:{port} cannot be reached: {error}") from None
    return BareRedis(lines, undo.enter_context(ThreadPoolExecutor(depth, "bare-lm")))


@contextmanager
def lm_store(folder: Path, bytes_max: int) -> Iterator[int]:
    """The port of a store server in memory.  Raises BenchmarkError."""
    port = free_port()
    command = [str(LMCACHE), "store-server", HOST, str(port), "--max-gb", str(bytes_max / 2**30)]
    store = ChildProcess("lmcache store-server", command, folder / "store.log", quiet_environment())
    store.start()
    try:
        end = time.monotonic() + START_SECONDS
        while "listening on" not in store.log_path.read_text():
            if store.ended or time.monotonic() > end:
                raise BenchmarkError(f"the store server did not start: {store.log_path.read_text()[-1000:]}")
            time.sleep(0.05)
        yield port
    finally:
        store.kill()
