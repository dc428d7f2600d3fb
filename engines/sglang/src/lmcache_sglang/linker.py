"""What SGLang calls: its names are in this file alone."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from lmcache_client import ConfigError
from lmcache_sglang.identity import model_name
from lmcache_sglang.page_link import PAGE_SIZE_MIN, PageLink, Registration, digests
from lmcache_sglang.pool_pages import PoolPages
from lmcache_sglang.settings import LinkerSettings

logger = logging.getLogger(__name__)

WRITTEN_FOR: Final = "0.5.23"
MISS_SECONDS: Final = 1.0
"""How long a request that waits is not looked up again in vain: SGLang asks for it in each step."""
HELD_SECONDS: Final = 30.0
"""SGLang does not say that a request has ended before its load.  It asks for one that waits in each step that could run it."""
SWEEP_SECONDS: Final = 5.0
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


@dataclass(slots=True)
class _Lookup:
    """What a request was answered, and the name under which the server holds it."""

    name: str
    hashes: tuple[str, ...]
    hits: int
    server: Registration | None
    asked: float


@dataclass(frozen=True, slots=True)
class _Load:
    name: str
    request_id: str
    hashes: Sequence[bytes]
    pages: torch.Tensor


class NodeLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """Pages of one rank.  SGLang's scheduler calls it on one thread; copies are done on two others."""

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
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        _check_pool(pool, components, params.page_size)
        self.pools = {PoolName.KV: pool}
        self._copies = PoolPages(pool.k_buffer, pool.v_buffer, params.page_size)
        self.layer_done_counter = LayerWiseLoadCounter(self._copies.layers)
        # A lookup wants objects of all layouts that a name has: another page size has another name.
        name = model_name(server_args, f"{self._copies.dtype} {params.page_size}", _shard(params))
        self._link = PageLink(self._settings, name, self._copies.layout)
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
        hashes = tuple(_of_kv(transfers).keys)
        known, server, now = self._lookups.get(rid), self._link.server, time.monotonic()
        if known is not None and known.hashes == hashes:
            if not known.hits and now - known.asked < MISS_SECONDS:
                return []
            if known.hits and known.server is server:
                known.asked = now
                return list(range(1, known.hits + 1))
        self._forget(rid)
        if len(hashes) < self._settings.min_load_pages:
            return []
        self._names += 1
        name = f"{rid}-{self._names}"
        hits = self._link.lookup(name, digests(hashes))
        if hits < self._settings.min_load_pages:
            self._link.end(name)
            hits = 0
        self._lookups[rid] = _Lookup(name, hashes, hits, server, time.monotonic())
        return list(range(1, hits + 1))

    def load(self, rid: str, transfers: list[Any]) -> bool:
        transfer = _of_kv(transfers)
        if rid in self._queued:
            raise ValueError(f"request {rid} already has a queued load")
        known = self._lookups.pop(rid, None)
        pages = self._copies.pages_of(transfer.device_indices)
        if len(pages) != len(transfer.keys):
            raise ValueError(f"request {rid}: {len(transfer.keys)} hashes for {len(pages)} pages")
        self._queued[rid] = _Load(known.name if known else rid, rid, digests(transfer.keys), pages)
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
            self._link.end(load.name)
        return load is not None

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        transfer = _of_kv(transfers)
        if not self._settings.store or not transfer.keys or not self._link.is_ready():
            return False
        hashes, pages = digests(transfer.keys), self._copies.pages_of(transfer.device_indices)
        if len(pages) != len(hashes):
            raise ValueError(f"{len(hashes)} hashes for {len(pages)} pages")
        written = self.record_offload_ready() if self._copies.device.type == "cuda" else []
        stored, round_ = self._stored, self._round
        self._run(self._storer, lambda: stored.append(self._store(hashes, pages, written, round_)))
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
        self._link.close()

    def _load_all(self, layers: Sequence[Future[None]], loads: Sequence[_Load], round_: int) -> None:
        """One batch.  Its last layer is complete when the server has taken back all pages, and so was there until then."""
        last = layers[-1]
        try:
            with ExitStack() as reading:
                places = [
                    [
                        torch.frombuffer(each, dtype=torch.uint8)
                        for each in reading.enter_context(_reading(self._link, load))
                    ]
                    for load in loads
                ]
                for layer, done in enumerate(layers):
                    self._check_round(round_)
                    for load, objects in zip(loads, places, strict=True):
                        self._copies.scatter(layer, load.pages, objects)
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
            self._link.end(load.name)

    def _store(self, hashes: Sequence[bytes], pages: torch.Tensor, written: Sequence[Any], round_: int) -> bool:
        """Whether the server has all of these pages now."""
        try:
            for event in written:
                event.synchronize()
            with self._link.writing(hashes) as (missing, places):
                if places:
                    objects = [torch.frombuffer(each, dtype=torch.uint8) for each in places]
                    self._copies.gather(pages[missing], objects)
                self._check_round(round_)  # else the pages may have had other tokens when they were copied
            return len(missing) == len(hashes) or self._link.count(hashes) == len(hashes)
        except Exception as error:  # noqa: BLE001 - SGLang waits for the result
            self.failed_stores += 1
            logger.warning("%d pages were not stored error=%s failed_stores=%d", len(hashes), error, self.failed_stores)
            return False

    def _check_round(self, round_: int) -> None:
        if self._round != round_:
            raise RuntimeError("SGLang has reset its cache meanwhile")

    def _run(self, executor: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        future = executor.submit(work)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def _forget(self, rid: str) -> None:
        known = self._lookups.pop(rid, None)
        if known is not None and known.hits:
            self._link.end(known.name)

    def _sweep(self) -> None:
        """End what is held for requests that are not asked for any more."""
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        for rid in [rid for rid, known in self._lookups.items() if now - known.asked > HELD_SECONDS]:
            self._forget(rid)


def _reading(link: PageLink, load: _Load) -> Any:
    return link.reading(load.name, load.hashes)


def check_interface() -> None:
    """Raises ConfigError where SGLang's linkers are not those that this one was written for."""
    found = frozenset(UnifiedCacheLinker.__abstractmethods__)
    if found != METHODS:
        raise ConfigError(
            f"lmcache-sglang was written for the linkers of SGLang {WRITTEN_FOR}; those of {sglang.__version__} differ in "
            f"{', '.join(sorted(found ^ METHODS))}"
        )


def _check_pool(pool: Any, components: Any, page_size: int) -> None:
    if set(components) != {ComponentType.FULL}:
        names = ", ".join(sorted(each.name for each in components))
        raise ConfigError(f"a model with caches {names}: lmcache-sglang knows FULL alone; use --enable-lmcache")
    if type(pool) is not MHATokenToKVPool or getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        raise ConfigError(
            f"the KV pool is a {type(pool).__name__}: lmcache-sglang knows MHATokenToKVPool with slots outermost"
        )
    if page_size < PAGE_SIZE_MIN:
        raise ConfigError(
            f"--page-size {page_size}: each page is an object of the server; choose {PAGE_SIZE_MIN} or more"
        )


def _shard(params: Any) -> tuple[int, ...]:
    """Rank and size of each way in which pages are divided among ranks."""
    group = params.attn_tp_cache_group or params.tp_cache_group
    ranks = (
        (torch.distributed.get_rank(group), torch.distributed.get_world_size(group)) if group is not None else (0, 1)
    )
    return (*ranks, params.pp_rank, params.pp_size, params.attn_cp_rank, params.attn_cp_size)


def _of_kv(transfers: Sequence[Any]) -> Any:
    (transfer,) = transfers
    if transfer.name != PoolName.KV:
        raise ValueError(f"a transfer of the pool {transfer.name}: only that of KV is known")
    return transfer
