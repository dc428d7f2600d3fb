"""Tokens of chunks into pages at another position, K turned, beside copies of whole blocks (`PageCopier`) of as many bytes.

    .venv/bin/python -m benchmarks.blend_moving [--rounds 9] [--json FILE]

The KV is that of a model of 8 billion parameters (32 layers, 8 heads of 128), in chunks of 256 tokens, which go to a position
that is 5 slots into a block; `native, back` takes them from there into a chunk.  Orders are those of vLLM's kernels on CPUs
(`vec`, `amx`) and of pages on devices (`slots`).  All take turns within a round, on one thread, on memory that exists and is in
no cache; figures are medians with their quartiles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine
from benchmarks.page_copy import CHUNK_TOKENS, CLOCKS, MEMORY_BYTES, Memory, seconds
from lmcache_client import ITEM_BYTES
from lmcache_kv_layout import ChunkRows, EngineKVFormat, KVPlaces, PageCopier, PagedGroup, Rotary
from lmcache_kv_layout.kv_places import Places

LAYERS, HEADS, HEAD_SIZE = 32, 8, 128
OFFSET: Final = 5
"""Slots between the beginning of a block and where a chunk goes."""
DELTA: Final = 1237
TILE: Final = 16
COPY: Final = "blocks"
FILL: Final = 0x3C
"""Each byte of the numbers that are turned: between 0.01 and 1.1 in all types.  Processors take longer for smaller ones than
models make."""


@dataclass(frozen=True, slots=True)
class Case:
    order: str
    dtype: str
    block_tokens: int
    style: Any = "neox"

    def group(self) -> PagedGroup:
        row = 2 * HEAD_SIZE
        item = ITEM_BYTES[self.dtype]
        block = self.block_tokens * HEADS * row * item
        blocks = MEMORY_BYTES // (LAYERS * block)
        by_head = self.order != "slots"
        group = PagedGroup(
            format=EngineKVFormat.NL_X_NB_NH_BS_CS if by_head else EngineKVFormat.NL_X_NB_BS_NH_CS,
            layers=LAYERS,
            kv_axis=1,
            heads=HEADS,
            head_bytes=row * item,
            item_bytes=item,
            dtype=self.dtype,
            blocks=blocks,
            slots_per_block=self.block_tokens,
            tokens_per_block=self.block_tokens,
            block_stride=block,
            slot_stride=row * item if by_head else HEADS * row * item,
            head_stride=self.block_tokens * row * item if by_head else row * item,
            bases=tuple((0, layer * blocks * block) for layer in range(LAYERS)),
        )
        return replace(group, block_slots=self.block_tokens, places=self._places()) if by_head else group

    def _places(self) -> KVPlaces:
        slots, elements = np.arange(self.block_tokens), np.arange(HEAD_SIZE)
        half = self.block_tokens * HEAD_SIZE
        if self.order == "vec":
            key, value = (slots, elements * self.block_tokens), (half + slots * HEAD_SIZE, elements)
        else:
            key = (_tiles(slots, HEAD_SIZE), elements // 2 * 2 * TILE + elements % 2)
            value = (half + slots // 2 * 2 * TILE + slots % 2, _tiles(elements, self.block_tokens))
        return KVPlaces(*(Places(tuple(each[0].tolist()), tuple(each[1].tolist())) for each in (key, value)))

    def __str__(self) -> str:
        return f"{self.order}, {self.dtype}, {self.block_tokens} tokens, {self.style}"


def _tiles(numbers: np.ndarray[Any, Any], reach: int) -> np.ndarray[Any, Any]:
    places: np.ndarray[Any, Any] = numbers // TILE * TILE * reach + numbers % TILE * 2
    return places


CASES: Final = (
    *(Case("vec", dtype, tokens) for dtype in ("float32", "bfloat16", "float16") for tokens in (32, 128)),
    Case("vec", "bfloat16", 128, "gptj"),
    Case("amx", "bfloat16", 32),
    Case("amx", "bfloat16", 128),
    *(Case("slots", dtype, 16) for dtype in ("float32", "bfloat16", "float16")),
    Case("slots", "bfloat16", 16, "gptj"),
)


def table(positions: int) -> np.ndarray[Any, Any]:
    angles = np.outer(np.arange(positions), 500_000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def measure(case: Case, rounds: int, clock: str, memory: Memory, rotary: Rotary) -> dict[str, list[float]]:
    """Seconds of one chunk, round by round."""
    group = case.group()
    bases = [memory.pages + offset for _, offset in group.bases]
    size = group.object_layout(CHUNK_TOKENS).payload_bytes
    per_chunk = group.blocks_per_chunk(CHUNK_TOKENS)
    ids = np.random.default_rng(1).permutation(group.blocks).tolist()
    places: Iterator[int] = itertools.cycle(range(min(MEMORY_BYTES // size, group.blocks // (per_chunk + 1))))

    def chunk() -> tuple[list[int], int]:
        place = next(places)
        return ids[place * (per_chunk + 1) : (place + 1) * (per_chunk + 1)], memory.objects + place * size

    def copy(copier: PageCopier) -> Callable[[], None]:
        def run() -> None:
            blocks, address = chunk()
            copier.scatter(group, bases, blocks[:per_chunk], [address])

        return run

    def move(way: Callable[..., int], delta: int) -> Callable[[], None]:
        def run() -> None:
            blocks, address = chunk()
            way(bases, blocks, address, range(CHUNK_TOKENS), OFFSET, delta)

        return run

    compiled, plain = (ChunkRows(group, rotary, HEAD_SIZE, CHUNK_TOKENS, native) for native in ("on", "off"))
    runs = {
        COPY: copy(PageCopier(1, "on")),
        "native": move(compiled.read, DELTA),
        "native, not turned": move(compiled.read, 0),
        "native, back": move(compiled.write, -DELTA),
        "numpy": move(plain.read, DELTA),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        names = list(runs)
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            once = seconds(runs[name], 4, CLOCKS[clock])
            if number:  # the first round warms up
                taken[name].append(once)
    return taken


def table_row(case: Case, taken: dict[str, list[float]]) -> str:
    nbytes = case.group().object_layout(CHUNK_TOKENS).payload_bytes
    cells = [f"{nbytes / statistics.median(taken[COPY]) / 1e9:.1f} GB/s"]
    for name in list(taken)[1:]:
        ratios = [copied / once for copied, once in zip(taken[COPY], taken[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        speed = nbytes / statistics.median(taken[name]) / 1e9
        cells.append(f"{speed:.1f} GB/s, {middle:.2f} ({low:.2f} to {high:.2f})")
    return f"| {case} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="keep every figure here")
    args = parser.parse_args()
    memory = Memory()
    for array in memory.arrays:
        array[:] = FILL
    rotaries: dict[str, Rotary] = {"neox": Rotary(table(4096), "neox"), "gptj": Rotary(table(4096), "gptj")}
    print(f"{machine.description()}\n")
    print("| pages | blocks, copied | native | native, not turned | native, back | numpy |\n|---|---|---|---|---|---|")
    kept: list[dict[str, Any]] = []
    for case in CASES:
        taken = measure(case, max(args.rounds, 2), args.clock, memory, rotaries[case.style])
        print(table_row(case, taken), flush=True)
        kept.append({"case": str(case), "seconds": taken})
    if args.json:
        args.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
