"""A worker without vLLM: paged caches of numpy memory, and the steps of a scheduler."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lmcache_client import encode_tokens
from lmcache_vllm.metadata import StepPlan, Transfer
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.worker import WorkerSide

BLOCKS = 40
BLOCK_TOKENS = 16
CHUNK_TOKENS = 32
LAYERS = 3
HEADS = 2
WIDTH = 8

Array = npt.NDArray[Any]
_transfer_ids = itertools.count(1)


class FakeTensor:
    """As much of a torch tensor as the worker looks at."""

    def __init__(self, array: Array, storage: Array, device: str = "cpu") -> None:
        self.array, self._storage, self.device = array, storage, device
        self.shape = array.shape
        self.dtype = f"torch.{array.dtype.name}"

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def storage_offset(self) -> int:
        offset = self.array.__array_interface__["data"][0] - self._storage.__array_interface__["data"][0]
        return int(offset) // self.array.itemsize

    def untyped_storage(self) -> FakeTensor:
        return self

    def data_ptr(self) -> int:
        return int(self._storage.__array_interface__["data"][0])

    def nbytes(self) -> int:
        return self._storage.nbytes


@dataclass(frozen=True)
class Paged:
    """Tensors of a model, their groups, and arrays `[block, ...]` of each layer to look into."""

    tensors: Mapping[str, FakeTensor]
    groups: tuple[CacheGroup, ...]
    pages: Mapping[str, Array]
    kv_layout: str | None = None

    def blocks_of(self, blocks: Sequence[Sequence[int]]) -> list[Array]:
        """The content of blocks, of each table in its own layers."""
        return [
            self.pages[name][list(table)].copy()
            for group, table in zip(self.groups, blocks, strict=True)
            for name in group.layer_names
        ]

    def wipe(self) -> None:
        for pages in self.pages.values():
            pages[...] = 0


def _content(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    return generator.integers(1, 100, shape).astype(dtype)


def fused_hnd(dtype: str = "float32") -> Paged:
    """As vLLM has it on the CPU: all layers in one allocation, heads before slots, K and V in one row."""
    storage = _content((LAYERS, BLOCKS, HEADS, BLOCK_TOKENS, 2 * WIDTH), dtype, 1)
    names = tuple(f"layer.{index}" for index in range(LAYERS))
    tensors = {name: FakeTensor(storage[index], storage) for index, name in enumerate(names)}
    pages = {name: storage[index] for index, name in enumerate(names)}
    return Paged(tensors, (CacheGroup(names, BLOCK_TOKENS),), pages, "HND")


def fused_nhd() -> Paged:
    """Slots before heads, seen with heads first."""
    storage = _content((LAYERS, BLOCKS, BLOCK_TOKENS, HEADS, 2 * WIDTH), "float16", 2)
    names = tuple(f"layer.{index}" for index in range(LAYERS))
    tensors = {name: FakeTensor(storage[index].transpose(0, 2, 1, 3), storage) for index, name in enumerate(names)}
    pages = {name: storage[index] for index, name in enumerate(names)}
    return Paged(tensors, (CacheGroup(names, BLOCK_TOKENS),), pages, "NHD")


def separate_planes() -> Paged:
    """K and V apart, each layer with memory of its own."""
    arrays = {
        f"layer.{index}": _content((2, BLOCKS, BLOCK_TOKENS, HEADS, WIDTH), "float32", 3 + index)
        for index in range(LAYERS)
    }
    tensors = {name: FakeTensor(array, array) for name, array in arrays.items()}
    pages = {name: array.swapaxes(0, 1) for name, array in arrays.items()}
    return Paged(tensors, (CacheGroup(tuple(arrays), BLOCK_TOKENS),), pages, "NHD")


def latent() -> Paged:
    """Multi-head latent attention: one row for each token."""
    arrays = {f"layer.{index}": _content((BLOCKS, BLOCK_TOKENS, 24), "float16", 6 + index) for index in range(LAYERS)}
    tensors = {name: FakeTensor(array, array) for name, array in arrays.items()}
    return Paged(tensors, (CacheGroup(tuple(arrays), BLOCK_TOKENS),), arrays)


def two_groups() -> Paged:
    """Layers of two geometries in one table, and others with a table of their own and blocks of another size."""
    wide = _content((2, BLOCKS, HEADS, BLOCK_TOKENS, 2 * WIDTH), "float32", 9)
    narrow = _content((1, BLOCKS, 1, BLOCK_TOKENS, 2 * WIDTH), "float32", 10)
    small = _content((2, 2 * BLOCKS, HEADS, BLOCK_TOKENS // 2, 2 * WIDTH), "float32", 11)
    pages = {"wide.0": wide[0], "narrow.0": narrow[0], "wide.1": wide[1], "small.0": small[0], "small.1": small[1]}
    storages = {"wide": wide, "narrow": narrow, "small": small}
    tensors = {name: FakeTensor(array, storages[name.split(".")[0]]) for name, array in pages.items()}
    groups = (
        CacheGroup(("wide.0", "narrow.0", "wide.1"), BLOCK_TOKENS),
        CacheGroup(("small.0", "small.1"), BLOCK_TOKENS // 2),
    )
    return Paged(tensors, groups, pages, "HND")


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@dataclass
class Rig:
    """A worker side and the steps that a scheduler and a model runner take with it."""

    side: WorkerSide
    paged: Paged
    computes: Sequence[str] = ()
    """Layers of the model, whose hooks it calls."""
    at_layer: Callable[[str], None] = lambda name: None
    """What the model does in each."""
    over: dict[int, int] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    failed_requests: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    counts: dict[str, float] = field(default_factory=dict)

    def step(self, **plan: Any) -> None:
        """One step, in the order in which vLLM makes its calls."""
        self.begin(StepPlan(**plan))

    def begin(self, plan: StepPlan) -> None:
        self.side.on_step(plan)
        self.side.start_loads(plan)
        for name in self.computes:
            self.side.before_layer(name)
            self.at_layer(name)
            self.side.after_layer(name)
        self.side.start_stores(plan)
        results = self.side.results()
        self.sent += sorted(results.finished_sending)
        self.received += sorted(results.finished_recving)
        self.failed_requests |= results.failed_recving
        self.failed_blocks |= self.side.failed_blocks()
        if (report := self.side.report()) is not None:
            for number, times in report.over.items():
                self.over[number] = self.over.get(number, 0) + times
        for name, amount in self.side.take_counts().items():
            self.counts[name] = self.counts.get(name, 0) + amount

    def store(self, transfer: Transfer, seconds: float = 20.0) -> None:
        """Store, and step until it is over and counted."""
        before = self._ended("store")
        self.step(stores=(transfer,))
        assert self.until(lambda: transfer.id in self.over and self._ended("store") > before, seconds)

    def load(self, transfer: Transfer, seconds: float = 20.0) -> None:
        """Load, and step until it is over."""
        before = self._ended("load")
        self.step(loads=(transfer,))
        assert self.until(lambda: transfer.request_id in self.received and self._ended("load") > before, seconds)

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> bool:
        def stepped() -> bool:
            self.step()
            return condition()

        return until(stepped, seconds)

    def _ended(self, kind: str) -> float:
        names = (f"{kind}s", f"failed_{kind}s")
        return sum(amount for name, amount in self.counts.items() if name.split(":")[0] in names)


@contextmanager
def rig(
    port: int | str,
    paged: Paged,
    *,
    placement: Placement | None = None,
    timeout_seconds: float = 10.0,
    heartbeat_seconds: float = 0.3,
) -> Iterator[Rig]:
    """A worker of model "model" that is registered, if there is a server.  `port`: or the endpoint of a cache in its engine."""
    settings = Settings(
        url=port if isinstance(port, str) else f"tcp://127.0.0.1:{port}",
        in_process=isinstance(port, str),
        timeout_seconds=timeout_seconds,
        heartbeat_seconds=heartbeat_seconds,
    )
    side = WorkerSide(settings, placement or Placement("model", 1, 0), paged.groups, paged.kv_layout)
    side.register_kv_caches(paged.tensors)
    try:
        yield Rig(side, paged)
    finally:
        side.close()


def transfer(
    tokens: Sequence[int],
    block_ids: Sequence[Sequence[int]],
    *,
    start: int = 0,
    end: int | None = None,
    request: str = "r",
    salt: str = "",
    chunk_tokens: int = CHUNK_TOKENS,
) -> Transfer:
    """The whole chunks of a prompt from `start`."""
    end = len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS if end is None else end
    encoded = bytes(encode_tokens(list(tokens[:end])))
    return Transfer(next(_transfer_ids), request, encoded, start, end, chunk_tokens, tuple(map(tuple, block_ids)), salt)
