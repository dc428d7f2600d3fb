"""What SGLang calls, behind its radix cache."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from lmcache_client import ConfigError
from lmcache_sglang import pools
from lmcache_sglang.identity import model_name
from lmcache_sglang.in_process import joined
from lmcache_sglang.page_link import PageLink, Registration, digests
from lmcache_sglang.pool_pages import PoolPages
from lmcache_sglang.settings import LinkerSettings
from lmcache_sglang.weights import OTHERS, UPDATES, Weights, interface

logger = logging.getLogger(__name__)

WRITTEN_FOR: Final = "0.5.23"
MISS_SECONDS: Final = 1.0
"""How long a request that waits is not looked up again in vain: SGLang asks for it in each step."""
HELD_SECONDS: Final = 30.0
"""SGLang does not say that a request has ended before its load.  It asks for one that waits in each step that could run it."""
SWEEP_SECONDS: Final = 5.0
WINDOWS_TRIED: Final = 8
"""Of one prompt, from its end on.  SGLang keeps windows where prompts ended or parted; each is a question to the server, and a
step waits for it."""
QUIET_SECONDS: Final = 5.0
"""How long `reset` and `close` wait for what is under way."""
METHODS: Final = frozenset(
    {
        "cancel_queued_load",
        "close",
        "finish_layer_wise_loading",
        "load",
        "lookup",
        "num_completed_offloads",
        "offload",
        "pop_completed_offload",
        "reset",
        "start_layer_wise_loading",
    }
)


class _Pool(NamedTuple):
    """A pool of the engine, and its pages in the server."""

    copies: PoolPages
    link: PageLink
    layers: Mapping[int, int]
    """The pool's layers, by those of the model."""


class _Pages(NamedTuple):
    """Pages of one pool, and their hashes."""

    pool: _Pool
    hashes: Sequence[bytes]
    numbers: torch.Tensor


@dataclass(slots=True)
class _Lookup:
    """What a request was answered, and the name under which the server holds it."""

    name: str
    hashes: tuple[str, ...]
    lengths: list[int]
    servers: tuple[Registration | None, ...]
    asked: float


@dataclass(frozen=True, slots=True)
class _Load:
    name: str
    request_id: str
    parts: Sequence[_Pages]


class NodeLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """Pages of one rank.  SGLang's scheduler calls it on one thread; copies are done on two others.

    Layers that attend to a window have a pool of their own, and so pages of their own.  A prefix can be restored where the
    server has all pages of the other layers, and those of the window that ends with it.
    """

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: Mapping[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        check_interface()
        self._settings = LinkerSettings.read(extra_config)
        self.forward_stream = forward_stream
        kv_pool = params.token_to_kv_pool_allocator.get_kvcache()
        pools.check_pools(kv_pool, components, server_args, params)
        is_alike = type(kv_pool) is MLATokenToKVPool  # the pages of all ranks of a tensor-parallel group
        self._is_storing = not is_alike or pools.rank(params)[0] == 0
        self._weights = Weights()
        self.pools = pools.parts(kv_pool)
        known = {}
        for name, pool in self.pools.items():
            copies = PoolPages(pools.planes(pool), params.page_size)
            # A lookup wants objects of all layouts that a name has: another page size has another name.
            how = f"{copies.dtype} {params.page_size}" + ("" if name is PoolName.KV else f" {name.value}")
            known[name] = copies, model_name(server_args, how, pools.shard(params, is_alike))
        settings, self._cache = joined(self._settings, server_args, len(known))
        self._pools: dict[PoolName, _Pool] = {
            name: _Pool(copies, PageLink(settings, model, copies.layout), pools.layers(kv_pool, name))
            for name, (copies, model) in known.items()
        }
        self.layer_done_counter = LayerWiseLoadCounter(1 + max(max(pool.layers) for pool in self._pools.values()))
        self._loader = ThreadPoolExecutor(1, "lmcache-load")
        self._storer = ThreadPoolExecutor(1, "lmcache-store")
        self._under_way: set[Future[None]] = set()
        self._lookups: dict[str, _Lookup] = {}
        self._queued: dict[str, _Load] = {}
        self._stored: deque[bool] = deque()
        self._round = self._names = 0
        """A round ends with `reset`: the engine may use its pages for something else from then on."""
        self._swept = time.monotonic()
        self.failed_loads = self.failed_stores = 0

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        asked = {self._name_of(each): each.keys for each in transfers}
        hashes = tuple(asked[PoolName.KV])
        servers = tuple(pool.link.server for pool in self._pools.values())
        known, now = self._lookups.get(rid), time.monotonic()
        if known is not None and known.hashes == hashes:
            if not known.lengths and now - known.asked < MISS_SECONDS:
                return []
            if known.lengths and known.servers == servers:
                known.asked = now
                return known.lengths
        self._forget(rid)
        if len(hashes) < self._settings.min_load_pages or not self._weights.are_as_at_the_start:
            return []
        self._names += 1
        name = f"{rid}-{self._names}"
        lengths = self._restorable(name, digests(hashes), len(asked.get(PoolName.SWA, ())))
        if not lengths:
            self._end(name)
        self._lookups[rid] = _Lookup(name, hashes, lengths, servers, time.monotonic())
        return lengths

    def _restorable(self, name: str, hashes: Sequence[bytes], window: int) -> list[int]:
        """Lengths of prefixes whose pages the server has, and holds under this name.  `window`: pages of the window that ends
        with a prefix, or all of it; 0 where there is none."""
        until = time.monotonic() + self._settings.prefetch_timeout_seconds
        hits = self._pools[PoolName.KV].link.lookup(name, hashes)
        for _ in range(WINDOWS_TRIED):
            if hits < self._settings.min_load_pages:
                break
            if not window:
                return list(range(1, hits + 1))
            if time.monotonic() > until:
                break
            link, first = self._pools[PoolName.SWA].link, max(0, hits - window)
            found = link.lookup(name, hashes[first:hits])
            if first + found == hits:
                return list(range(1 if first == 0 else hits, hits + 1))
            link.end(name)
            hits = first + found  # the windows of all longer prefixes have the page that is missing
        return []

    def load(self, rid: str, transfers: list[Any]) -> bool:
        if rid in self._queued:
            raise ValueError(f"request {rid} already has a queued load")
        known = self._lookups.pop(rid, None)
        parts = [self._pages_of(each) for each in transfers]
        if not self._weights.are_as_at_the_start:  # since the lookup; the pages are computed
            self._end(known.name if known else rid)
            return False
        self._queued[rid] = _Load(known.name if known else rid, rid, parts)
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index = int(self.layer_done_counter.update_producer())
        layers = self.layer_done_counter.futures[index]  # `reset` gives the index to another batch
        round_ = self._round
        self._run(self._loader, lambda: self._load_all(layers, loads, round_))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    def cancel_queued_load(self, rid: str) -> bool:
        load = self._queued.pop(rid, None)
        if load is not None:
            self._end(load.name)
        return load is not None

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """What it returns is the same on all ranks: SGLang matches their results by their order.  A rank without a server says
        so by its result."""
        parts = [self._pages_of(each) for each in transfers if each.keys]
        if not self._settings.store or not parts or not self._weights.are_as_at_the_start:
            return False
        stored, round_ = self._stored, self._round
        if not self._is_storing:
            stored.append(True)  # another rank's result decides
            return True
        written = self.record_offload_ready() if parts[0].pool.copies.device.type == "cuda" else []
        self._run(self._storer, lambda: stored.append(self._store(parts, written, round_)))
        return True

    def num_completed_offloads(self) -> int:
        self._sweep()
        return len(self._stored)

    def pop_completed_offload(self) -> bool:
        if not self._stored:
            raise LookupError("no offload has completed whose result was not taken")
        return self._stored.popleft()

    def reset(self) -> None:
        self._round += 1
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        for rid in list(self._lookups):
            self._forget(rid)
        _, late = wait(self._under_way, QUIET_SECONDS)
        if late:
            logger.warning("%d copies are still under way after %.0f s", len(late), QUIET_SECONDS)
        self._stored = deque()
        self.layer_done_counter.reset()

    def close(self) -> None:
        self.reset()
        for executor in (self._loader, self._storer):
            executor.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            pool.link.close()
        if self._cache is not None:
            self._cache.close()

    def _load_all(self, layers: Sequence[Future[None]], loads: Sequence[_Load], round_: int) -> None:
        """One batch.  Its last layer is complete when the server has taken back all pages, and so was there until then."""
        last = layers[-1]
        try:
            with ExitStack() as reading:
                parts = [
                    (part, _objects(reading.enter_context(part.pool.link.reading(load.name, part.hashes))))
                    for load in loads
                    for part in load.parts
                ]
                for layer, done in enumerate(layers):
                    self._check_round(round_)
                    for part, objects in parts:
                        if (own := part.pool.layers.get(layer)) is not None:
                            part.pool.copies.scatter(own, part.numbers, objects)
                    if done is not last:
                        done.set_result(None)
            last.set_result(None)
        except Exception as error:  # noqa: BLE001 - a forward pass waits for each layer, whatever happened
            self.failed_loads += len(loads)
            requests = [load.request_id for load in loads]
            logger.error("a load failed requests=%s error=%s failed_loads=%d", requests, error, self.failed_loads)
            for future in layers:
                if not future.done():
                    future.set_exception(error)
        for load in loads:
            self._end(load.name)

    def _store(self, parts: Sequence[_Pages], written: Sequence[Any], round_: int) -> bool:
        """Whether the server has all of these pages now."""
        if not all(part.pool.link.is_ready() for part in parts):
            return False
        try:
            for event in written:
                event.synchronize()
            return all(self._store_pages(part, round_) for part in parts)
        except Exception as error:  # noqa: BLE001 - SGLang waits for the result
            self.failed_stores += 1
            count = sum(len(part.hashes) for part in parts)
            logger.warning("%d pages were not stored error=%s failed_stores=%d", count, error, self.failed_stores)
            return False

    def _store_pages(self, part: _Pages, round_: int) -> bool:
        with part.pool.link.writing(part.hashes) as (missing, places):
            if places:
                part.pool.copies.gather(part.numbers[missing], _objects(places))
            self._check_round(round_)  # else the pages may have had other tokens when they were copied
        return len(missing) == len(part.hashes) or part.pool.link.count(part.hashes) == len(part.hashes)

    def _check_round(self, round_: int) -> None:
        if self._round != round_:
            raise RuntimeError("SGLang has reset its cache meanwhile")

    def _run(self, executor: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        future = executor.submit(work)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def _forget(self, rid: str) -> None:
        known = self._lookups.pop(rid, None)
        if known is not None and known.lengths:
            self._end(known.name)

    def _end(self, name: str) -> None:
        for pool in self._pools.values():
            pool.link.end(name)

    def _sweep(self) -> None:
        """End what is held for requests that are not asked for any more."""
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        for rid in [rid for rid, known in self._lookups.items() if now - known.asked > HELD_SECONDS]:
            self._forget(rid)

    def _name_of(self, transfer: Any) -> PoolName:
        for name in self._pools:
            if name == transfer.name:
                return name
        raise ValueError(f"a transfer of the pool {transfer.name}: this model has {' and '.join(self._pools)}")

    def _pages_of(self, transfer: Any) -> _Pages:
        """Raises ValueError for what are not whole pages, each with its hash."""
        pool, hashes = self._pools[self._name_of(transfer)], digests(transfer.keys)
        numbers = pool.copies.pages_of(transfer.device_indices)
        if len(numbers) != len(hashes):
            raise ValueError(f"{len(hashes)} hashes for {len(numbers)} pages")
        return _Pages(pool, hashes, numbers)


def _objects(places: Sequence[memoryview]) -> list[torch.Tensor]:
    return [torch.frombuffer(each, dtype=torch.uint8) for each in places]


def check_interface() -> None:
    """Raises ConfigError where SGLang's linkers are not those that this one was written for."""
    found = frozenset(UnifiedCacheLinker.__abstractmethods__) | interface()
    known = METHODS | UPDATES | OTHERS
    if found != known:
        raise ConfigError(
            f"lmcache-sglang was written for the linkers of SGLang {WRITTEN_FOR}; those of {sglang.__version__} differ in "
            f"{', '.join(sorted(found ^ known))}"
        )
