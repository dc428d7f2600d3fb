"""Transfer channels between two processes of one machine, each beside memcpy in the same round.

    .venv/bin/python -m benchmarks.transfer_channels [--rounds 9] [--channels shm,tcp,tls,nixl] [--sizes 1,8,32] [--clock cpu]

An owner in a process of its own exposes memory full of objects.  This process reads them, in jobs of 8 as a prefetch does, two
jobs at a time, until they are in memory and their digests are known: by the channel where it computes them, and otherwise by
one thread behind it.  memcpy is one thread that copies as many bytes and computes no digest.  All take turns within a round,
over memory that is in no cache.  Figures are medians of the rounds' ratios to the memcpy of the same round, with their
quartiles, and the best rates.  `tls` is tcp, encrypted.  `nixl` brings a row `bare NIXL`: the agent with nothing
around it, and a digest behind each read; UCX_TLS=tcp,self has both use TCP.  `latency` is one object of 1 MiB at a time,
digest included.
`--clock cpu` counts the CPU time of this process, all threads together: for a machine that has other work.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import machine
from benchmarks.bare_nixl import BareNixlReads, registered_reads
from lmcache_core import HEADER_BYTES, MemoryRegion
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.object_header import digest
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p.tls import new_certificate
from lmcache_tools.bench.channels import JOBS, OBJECTS_PER_JOB, Read, Reader, Side, open_side

MIB: Final = 1 << 20
MEMORY_BYTES: Final = 512 * MIB
LATENCIES: Final = 200
SECRET: Final = bytes(16)
MEMCPY: Final = "memcpy"
NIXL: Final = "nixl"


def open_channel(name: str, stack: ExitStack) -> Side:
    settings: dict[str, object] = {"trusted_network": True} if name == NIXL else {}
    if name == "tls":
        name, folder = "tcp", Path(stack.enter_context(TemporaryDirectory()))
        settings = dict(zip(("tls_cert", "tls_key"), map(str, new_certificate(folder)), strict=True))
    side = stack.enter_context(open_side(load_plugins(), name, settings, "127.0.0.1", MEMORY_BYTES, "--channels"))
    filled(side.region)
    return side


def filled(region: MemoryRegion) -> MemoryRegion:
    """Every page of it is there."""
    noise = os.urandom(MIB)
    for at in range(0, MEMORY_BYTES, MIB):
        region.view[at : at + MIB] = noise
    return region


def bare_memory(stack: ExitStack) -> MemoryRegion:
    return filled(stack.enter_context(closing(BorrowedMemory(MEMORY_BYTES, shared=True))).region)


def serve(name: str) -> None:
    """The owner's process, until its input ends."""
    with ExitStack() as stack:
        if name == BareNixlReads.name:
            print(registered_reads(bare_memory(stack), stack)[1].hex(), flush=True)
        else:
            side = open_channel(name, stack)
            side.channel.expose(SECRET, [(0, MEMORY_BYTES)])
            print(side.channel.describe().hex(), flush=True)
        sys.stdin.read()


def owner_of(name: str, stack: ExitStack) -> bytes:
    """A process that owns memory, and what it says of it."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transfer_channels", "--owner", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(owner)
    assert owner.stdin is not None
    stack.enter_context(owner.stdin)
    assert owner.stdout is not None
    return bytes.fromhex(owner.stdout.readline())


def open_reader(name: str, stack: ExitStack) -> Reader:
    side = open_channel(name, stack)
    return stack.enter_context(closing(Reader(side, owner_of(name, stack), SECRET)))


class BareReader:
    def __init__(self, stack: ExitStack) -> None:
        self._region = bare_memory(stack)
        agent, _ = registered_reads(self._region, stack)
        owner = owner_of(BareNixlReads.name, stack)
        self._reads = BareNixlReads(agent, self._region.address, owner, OBJECTS_PER_JOB * JOBS)

    def read(self, reads: Sequence[Read]) -> None:
        for offset, length in self._reads.run([(each.remote, each.length) for each in reads]):
            digest(self._region.view[offset + HEADER_BYTES : offset + length])


def rates(
    readers: dict[str, Reader | BareReader], size: int, region: MemoryRegion, clock: Callable[[], float]
) -> dict[str, float]:
    """GB/s of each, and of memcpy, once over half of the memory."""
    reads = [Read(at, at, size) for at in range(0, MEMORY_BYTES // 2, size)]
    found = {}
    begin = clock()
    for each in reads:
        ctypes.memmove(region.address + MEMORY_BYTES // 2 + each.local, region.address + each.local, size)
    found[MEMCPY] = len(reads) * size / (clock() - begin) / 1e9
    for name, reader in readers.items():
        begin = clock()
        reader.read(reads)
        found[name] = len(reads) * size / (clock() - begin) / 1e9
    return found


def latency_ms(reader: Reader | BareReader) -> float:
    """The median of reading one object of 1 MiB."""
    seconds = []
    for number in range(LATENCIES):
        begin = time.perf_counter()
        reader.read([Read(number * MIB, number * MIB, MIB)])
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1000


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--channels", default="shm,tcp,tls")
    parser.add_argument("--sizes", default="1,8,32", help="in MiB")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--owner", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.owner:
        serve(given.owner)
        return
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    print(", ".join(machine.description().values()))
    with ExitStack() as stack:
        channels = {name: open_reader(name, stack) for name in given.channels.split(",")}
        region = next(iter(channels.values())).region
        bare = {BareNixlReads.name: BareReader(stack)} if NIXL in channels else {}
        readers: dict[str, Reader | BareReader] = {**channels, **bare}
        for size in map(int, given.sizes.split(",")):
            seen: dict[str, list[float]] = defaultdict(list)
            ratios: dict[str, list[float]] = defaultdict(list)
            of_bare: list[float] = []
            rates(readers, size * MIB, region, clock)  # page tables and caches of both
            for _ in range(given.rounds):
                found = rates(readers, size * MIB, region, clock)
                for name, rate in found.items():
                    seen[name].append(rate)
                    ratios[name].append(rate / found[MEMCPY])
                if bare:
                    of_bare.append(found[NIXL] / found[BareNixlReads.name])
            print(f"{size} MiB: memcpy {max(seen[MEMCPY]):.1f} GB/s at best")
            for name in readers:
                low, middle, high = statistics.quantiles(ratios[name], n=4)
                print(f"  {name}: {middle:.2f} of memcpy ({low:.2f} to {high:.2f}), {max(seen[name]):.1f} GB/s at best")
            if bare:
                low, middle, high = statistics.quantiles(of_bare, n=4)
                print(f"  {NIXL}: {middle:.2f} of {BareNixlReads.name} ({low:.2f} to {high:.2f})")
        for name, reader in readers.items():
            print(f"latency of {name}: {latency_ms(reader):.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
