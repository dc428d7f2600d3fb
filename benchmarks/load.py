"""Clients in processes of their own that look prompts up without pause."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from benchmarks.frames import LookupCycle
from benchmarks.peer import BenchmarkError, Peer
from benchmarks.prompts import Prompt

READY_SECONDS: Final = 60
_KNOWN_CYCLES: Final = 32
"""Request ids that are used in turn; each has ended when it comes again."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one client does: look up the prompt of this seed, which is there, again and again; or, each time, one that
    no server has seen and of which nothing is there."""

    port: int
    chunks: int
    seed: int
    checks: bool
    new_each_time: bool = False


class Done(NamedTuple):
    cycles: int
    seconds: float


class RunningLoad:
    """Loads that are under way.  `results` says what they did, once they have ended."""

    def __init__(self) -> None:
        self.results: list[Done] = []


@contextmanager
def running(loads: Sequence[Load]) -> Iterator[RunningLoad]:
    """All of them work while the block runs.  Raises BenchmarkError when one of them fails."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes: list[Connection] = []
        for load in loads:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(load, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, READY_SECONDS)
            stack.callback(process.terminate)
            pipes.append(ours)
        for pipe in pipes:
            _take(pipe)
        for pipe in pipes:
            pipe.send(None)
        under_way = RunningLoad()
        yield under_way
        for pipe in pipes:
            pipe.send(None)
        under_way.results = [done for pipe in pipes if (done := _take(pipe))]


def _take(pipe: Connection) -> Done | None:
    if not pipe.poll(READY_SECONDS):
        raise BenchmarkError(f"a client process said nothing for {READY_SECONDS} s")
    try:
        said: Done | None = pipe.recv()
    except EOFError:
        raise BenchmarkError("a client process failed; its error is above") from None
    return said


def _work(load: Load, pipe: Connection) -> None:
    cycles = _cycles(load)
    hits = 0 if load.new_each_time else load.chunks
    with Peer(load.port, checks=load.checks) as peer:
        peer.look_up(next(cycles), hits)
        pipe.send(None)
        pipe.recv()
        start_time, number = time.monotonic(), 0
        while not number or not pipe.poll():  # one at least, however briefly it runs
            peer.look_up(next(cycles), hits)
            number += 1
        pipe.send(Done(number, time.monotonic() - start_time))


def _cycles(load: Load) -> Iterator[LookupCycle]:
    prompt, name = Prompt(load.chunks, load.seed), f"load-{load.seed}"
    if load.new_each_time:
        for number in count(time.monotonic_ns() >> 20 & 0x3FFFFFFF):  # no load that ran before has sent these
            yield LookupCycle(prompt.another(number), load.chunks, f"{name}-{number}")
    yield from cycle(
        [LookupCycle(prompt.token_ids(), load.chunks, f"{name}-{number}") for number in range(_KNOWN_CYCLES)]
    )
