"""NIXL with nothing around it, as the measure of what an adapter or channel that uses it could do."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_client.errors import LMCacheError
from lmcache_core import MemoryRegion
from lmcache_nixl_agent.agent import Extent, Handle, NixlAgent, Segment
from lmcache_nixl_agent.ucx import open_ucx_agent
from lmcache_tools.bench.lane import Step, Verb
from lmcache_tools.bench.memory import BenchMemory

PATIENCE_SECONDS: Final = 60.0
_FILE: Final = "bare.nixl"


class BareNixl:
    """Buffers of one length to and from one file, `depth` of them at a time, by one thread that asks all the time whether any
    has ended: prepared, started, asked and released, and nothing else."""

    name: Final = "bare NIXL"

    def __init__(self, agent: NixlAgent, fd: int, depth: int) -> None:
        """The file is registered, and long enough for all buffers, one behind the other."""
        self._agent = agent
        self._fd = fd
        self._depth = depth
        self._places: dict[bytes, int] = {}

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when a transfer fails, or none has ended for too long."""
        if steps[0].verb is Verb.STORE:
            self._places = {step.key.object_id: number * step.buffer.length for number, step in enumerate(steps)}
        waiting = [(step, self._places[step.key.object_id]) for step in reversed(steps)]
        cpu, began = time.process_time(), time.perf_counter()
        try:
            self._move(waiting)
        except OSError as error:
            raise BenchmarkError(f"{self.name}: {error}") from None
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        moved = sum(step.buffer.length for step in steps)
        return Speed(moved / seconds / 1e9, cpu_seconds / (moved / 1e9))

    def clear(self) -> None:
        """The file is written over."""
        self._places.clear()

    def _move(self, waiting: list[tuple[Step, int]]) -> None:
        """Takes from the end of the list."""
        flying: list[Handle] = []
        end = time.monotonic() + PATIENCE_SECONDS
        while waiting or flying:
            while waiting and len(flying) < self._depth:
                flying.append(self._begin(*waiting.pop()))
            ended = [handle for handle in flying if self._agent.has_ended(handle)]
            for handle in ended:
                self._agent.release(handle)
                flying.remove(handle)
                end = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > end:
                raise BenchmarkError(f"{self.name}: nothing has ended within {PATIENCE_SECONDS:g} s")

    def _begin(self, step: Step, at: int) -> Handle:
        length = step.buffer.length
        handle = self._agent.prepare(
            writes=step.verb is Verb.STORE,
            memory=Extent(step.buffer.address, length),
            segment=Segment.FILE,
            place=Extent(at, length, self._fd),
        )
        self._agent.begin(handle)
        return handle


def bare_nixl(
    folder: Path, is_direct: bool, size_bytes: int, depth: int, count: int, memory: BenchMemory, undo: ExitStack
) -> BareNixl:
    """A file of its own in the folder, and all of this memory registered; `undo` ends both.  Raises BenchmarkError."""
    try:
        agent = NixlAgent.open("bench", "POSIX", {})
        path = folder / _FILE
        fd = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | (os.O_DIRECT if is_direct else 0), 0o600
        )
        undo.callback(path.unlink, missing_ok=True)
        undo.callback(os.close, fd)
        os.posix_fallocate(fd, 0, count * size_bytes)
        region = memory.arena.region
        undo.callback(agent.deregister, agent.register(Segment.MEMORY, [Extent(region.address, region.length)]))
        undo.callback(agent.deregister, agent.register(Segment.FILE, [Extent(0, count * size_bytes, fd)]))
    except (LMCacheError, OSError) as error:
        raise BenchmarkError(f"{BareNixl.name}: {error}") from None
    return BareNixl(agent, fd, depth)


_ADDRESS_BYTES: Final = 8


class BareNixlReads:
    """Out of another process's region, by UCX, `depth` reads at a time: as `BareNixl`."""

    name: Final = "bare NIXL"

    def __init__(self, agent: NixlAgent, address: int, owner: bytes, depth: int) -> None:
        """`address`: of the registered region that is read into; `owner`: what `registered_reads` says there."""
        self._agent, self._address, self._depth = agent, address, depth
        self._remote = int.from_bytes(owner[:_ADDRESS_BYTES], "little")
        self._peer = agent.add_peer(owner[_ADDRESS_BYTES:])

    def run(self, extents: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Reads these (offset, length), and gives each once it was read."""
        waiting, flying = list(reversed(extents)), list[tuple[Handle, tuple[int, int]]]()
        while waiting or flying:
            while waiting and len(flying) < self._depth:
                at, length = extent = waiting.pop()
                memory, place = Extent(self._address + at, length), Extent(self._remote + at, length)
                handle = self._agent.prepare(
                    writes=False, memory=memory, segment=Segment.MEMORY, place=place, peer=self._peer
                )
                self._agent.begin(handle)
                flying.append((handle, extent))
            for each in [each for each in flying if self._agent.has_ended(each[0])]:
                self._agent.release(each[0])
                flying.remove(each)
                yield each[1]


def registered_reads(region: MemoryRegion, undo: ExitStack) -> tuple[NixlAgent, bytes]:
    """An agent that knows this memory, and what its readers need; `undo` ends it."""
    agent = open_ucx_agent(f"bare-{secrets.token_hex(8)}", "127.0.0.1")
    undo.callback(agent.close)
    agent.register(Segment.MEMORY, [Extent(region.address, region.length)])
    return agent, region.address.to_bytes(_ADDRESS_BYTES, "little") + agent.metadata()
