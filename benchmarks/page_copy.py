"""Copies between paged KV and chunk objects: compiled, by numpy, and as torch does it, each beside a memmove of as many bytes.

    .venv/bin/python -m benchmarks.page_copy [--rounds 9] [--blocks 16,32,128] [--json FILE]

The KV is that of a model of 8 billion parameters (32 layers, 8 heads of 128, bfloat16; 4 chunks of 32 MiB), and then of a
small one (8 chunks of 128 KiB).  All take turns within a round, on memory that exists and is in no cache; figures are
medians of the rounds' ratios to the memmove of the same round, with their quartiles.  `--clock cpu` counts the CPU time of
this process, all threads together: for a machine that has other work.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import machine
from lmcache_kv_layout import EngineKVFormat, PageCopier, PagedGroup

CHUNK_TOKENS: Final = 256
MEMORY_BYTES: Final = 256 << 20
"""Of pages, and as much of objects: several times the last level of cache, and twice the largest request."""
MEMMOVE: Final = "memmove"
Clock = Callable[[], float]
CLOCKS: Final[Mapping[str, Clock]] = {"wall": time.perf_counter, "cpu": time.process_time}
COLUMNS: Final = ("native", "native, 2 threads", "numpy", "torch")


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    layers: int
    heads: int
    head_size: int
    chunks: int


MODELS: Final = (Model("8B", 32, 8, 128, 4), Model("small", 2, 1, 64, 8))


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of pages.  `fused`: keys and values of a head lie in one row."""

    model: Model
    block_tokens: int
    head_major: bool
    fused: bool

    def group(self) -> PagedGroup:
        kv_axis, head_bytes = (1, 4 * self.model.head_size) if self.fused else (2, 2 * self.model.head_size)
        tokens, heads = self.block_tokens, self.model.heads
        block = tokens * heads * head_bytes
        blocks = MEMORY_BYTES // (kv_axis * self.model.layers * block)
        planes = range(kv_axis * self.model.layers)
        formats = (EngineKVFormat.NL_X_TWO_NB_BS_NH_HS, EngineKVFormat.NL_X_TWO_NB_NH_BS_HS)
        fused = (EngineKVFormat.NL_X_NB_BS_NH_CS, EngineKVFormat.NL_X_NB_NH_BS_CS)
        return PagedGroup(
            format=(fused if self.fused else formats)[self.head_major],
            layers=self.model.layers,
            kv_axis=kv_axis,
            heads=heads,
            head_bytes=head_bytes,
            item_bytes=2,
            dtype="bfloat16",
            blocks=blocks,
            slots_per_block=tokens,
            tokens_per_block=tokens,
            block_stride=block,
            slot_stride=head_bytes if self.head_major else heads * head_bytes,
            head_stride=tokens * head_bytes if self.head_major else head_bytes,
            bases=tuple((0, plane * blocks * block) for plane in planes),
            window_tokens=-1,
        )

    def __str__(self) -> str:
        order = "head-major" if self.head_major else "token-major"
        return f"{self.model.name}, {order}, {'fused' if self.fused else 'separate'}, {self.block_tokens} tokens"


class Memory:
    """Pages and objects, shared as a worker's and L1's are, and all there."""

    def __init__(self) -> None:
        self.arrays = [np.frombuffer(mmap.mmap(-1, MEMORY_BYTES), np.uint8) for _ in range(2)]
        for number, array in enumerate(self.arrays):
            array[:] = number + 1
        self.pages, self.objects = (int(array.ctypes.data) for array in self.arrays)
        self.tensors = [torch.from_numpy(array) for array in self.arrays]


class Requests:
    """Which blocks and objects each of a case's requests is about: others each time, until all memory was used."""

    def __init__(self, case: Case, memory: Memory) -> None:
        self.group = case.group()
        per_object = self.group.blocks_per_chunk(CHUNK_TOKENS)
        size = self.group.object_layout(CHUNK_TOKENS).payload_bytes
        self.nbytes = size * case.model.chunks
        ids = list(range(self.group.blocks))
        random.Random(1).shuffle(ids)
        count = min(MEMORY_BYTES // self.nbytes, len(ids) // (per_object * case.model.chunks))
        step = per_object * case.model.chunks
        self._all = [
            (
                ids[number * step : (number + 1) * step],
                [number * self.nbytes + chunk * size for chunk in range(case.model.chunks)],
            )
            for number in range(count)
        ]
        self._next: Iterator[tuple[list[int], list[int]]] = itertools.cycle(self._all)

    def next(self) -> tuple[list[int], list[int]]:
        """Block ids, and where each object begins."""
        return next(self._next)


def with_copier(copier: PageCopier, gather: bool, requests: Requests, memory: Memory) -> Callable[[], None]:
    group = requests.group
    bases = [memory.pages + offset for _, offset in group.bases]
    copy = copier.gather if gather else copier.scatter

    def run() -> None:
        blocks, offsets = requests.next()
        copy(group, bases, blocks, [memory.objects + offset for offset in offsets])

    return run


def with_torch(gather: bool, requests: Requests, memory: Memory) -> Callable[[], None]:
    """As an engine's own Python would: one indexed copy for each plane of each object."""
    group = requests.group
    head_major = group.slot_stride < group.head_stride
    row = group.head_bytes // group.item_bytes
    order = (group.blocks, group.heads, group.slots_per_block, row)
    if not head_major:
        order = (group.blocks, group.slots_per_block, group.heads, row)
    pages, objects = memory.tensors
    plane_bytes = group.blocks * group.block_stride
    planes = [pages[offset : offset + plane_bytes].view(torch.bfloat16).view(order) for _, offset in group.bases]
    per_object = group.blocks_per_chunk(CHUNK_TOKENS)
    region = CHUNK_TOKENS * group.token_bytes

    def run() -> None:
        blocks, offsets = requests.next()
        for number, offset in enumerate(offsets):
            ids = torch.tensor(blocks[number * per_object : (number + 1) * per_object])
            for index, plane in enumerate(planes):
                begin = offset + index * region
                rows = objects[begin : begin + region].view(torch.bfloat16)
                rows = rows.view(-1, group.slots_per_block, group.heads, row)
                if head_major:
                    rows = rows.transpose(1, 2)
                if not gather:
                    plane.index_copy_(0, ids, rows)
                elif head_major:
                    rows.copy_(plane.index_select(0, ids))
                else:
                    torch.index_select(plane, 0, ids, out=rows)

    return run


def with_memmove(gather: bool, requests: Requests, memory: Memory) -> Callable[[], None]:
    """The limit: as many bytes in one run, from one memory to the other."""
    places = itertools.cycle(range(0, MEMORY_BYTES - requests.nbytes + 1, requests.nbytes))
    source, target = (memory.pages, memory.objects) if gather else (memory.objects, memory.pages)

    def run() -> None:
        place = next(places)
        ctypes.memmove(target + place, source + place, requests.nbytes)

    return run


def seconds(run: Callable[[], None], repeats: int, clock: Clock) -> float:
    start_time = clock()
    for _ in range(repeats):
        run()
    return (clock() - start_time) / repeats


def measure(case: Case, gather: bool, rounds: int, clock: Clock, memory: Memory) -> dict[str, list[float]]:
    """Seconds of one request, round by round."""
    requests = Requests(case, memory)
    runs: Mapping[str, Callable[[], None]] = {
        MEMMOVE: with_memmove(gather, requests, memory),
        "native": with_copier(PageCopier(1, "on"), gather, requests, memory),
        "native, 2 threads": with_copier(PageCopier(2, "on"), gather, requests, memory),
        "numpy": with_copier(PageCopier(1, "off"), gather, requests, memory),
        "torch": with_torch(gather, requests, memory),
    }
    repeats = max(1, (32 << 20) // requests.nbytes)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        turn = number % len(runs)
        names = list(runs)
        for name in [*names[turn:], *names[:turn]]:
            once = seconds(runs[name], repeats, clock)
            if number:  # the first round warms up
                taken[name].append(once)
    return taken


def ratios(taken: Mapping[str, Sequence[float]], name: str) -> list[float]:
    return [memmove / once for memmove, once in zip(taken[MEMMOVE], taken[name], strict=True)]


def table_row(case: Case, gather: bool, taken: Mapping[str, Sequence[float]]) -> str:
    nbytes = case.group().object_layout(CHUNK_TOKENS).payload_bytes * case.model.chunks
    limit = statistics.median(taken[MEMMOVE])
    cells = [f"{limit * 1e3:.3g} ms, {nbytes / limit / 1e9:.1f} GB/s"]
    for name in COLUMNS:
        low, middle, high = statistics.quantiles(ratios(taken, name), n=4)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return f"| {case} | {'gather' if gather else 'scatter'} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--blocks", default="16,32,128", help="tokens of an engine's block")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="keep every figure here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory = Memory()
    print(f"{machine.description()}\n")
    print(f"| pages | direction | {MEMMOVE} | {' | '.join(COLUMNS)} |")
    print("|---" * (3 + len(COLUMNS)) + "|")
    kept: list[dict[str, Any]] = []
    sizes = [int(size) for size in args.blocks.split(",")]
    for model, head_major, fused, tokens in itertools.product(MODELS, (False, True), (False, True), sizes):
        if model.heads == 1 and head_major:
            continue  # one head: both orders are the same
        case = Case(model, tokens, head_major, fused)
        for gather in (True, False):
            taken = measure(case, gather, max(args.rounds, 2), CLOCKS[args.clock], memory)
            print(table_row(case, gather, taken), flush=True)
            kept.append({"case": str(case), "gather": gather, "seconds": taken})
    if args.json:
        args.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
