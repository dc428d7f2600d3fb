"""HiCache's storage: pages go between SGLang's host pools and the server, and nothing is in between."""

from __future__ import annotations

import ctypes
import logging
import math
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_server_args

from lmcache_client import ConfigError, LayoutPart, LMCacheError
from lmcache_sglang.identity import model_name
from lmcache_sglang.page_link import PAGE_SIZE_MIN, PageLink, digests
from lmcache_sglang.pool_pages import page_numbers
from lmcache_sglang.settings import HiCacheSettings
from lmcache_sglang.weights import Weights

logger = logging.getLogger(__name__)

LAYOUTS: Final = ("layer_first", "page_first", "page_first_direct")


class Piece(NamedTuple):
    """A run of a page's bytes."""

    address: int
    length: int


Page = Sequence[Piece]
"""All bytes of a page in an object's order, which is that of `get_data_page`."""


class HiCacheNode(HiCacheStorage):  # type: ignore[misc]
    """Pages of one rank.  Any thread: SGLang has one that asks what is there, one that loads, and one that stores.

    A page is answered as loaded when its last byte is there and the server has taken its object back, which it had until then.
    The server decides which pages stay; what it loses is computed."""

    def __init__(self, storage_config: Any, _pool_or_options: Any = None) -> None:
        """Raises ConfigError.  The server is looked for when SGLang registers its pool."""
        self._settings = HiCacheSettings.read(storage_config.extra_config)
        self._config, self._weights = storage_config, Weights()
        self._pages: _HostPages | None = None
        self._link: PageLink | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Raises ConfigError, with the pool's name, for one that is not known."""
        pages = _HostPages(mem_pool_host)
        self.close()
        super().register_mem_pool_host(mem_pool_host)
        # A lookup wants objects of all layouts that a name has: what differs has another name.
        how = f"{mem_pool_host.dtype} {mem_pool_host.layout} {mem_pool_host.page_size}"
        name = model_name(get_server_args(), how, self._shard(pages))
        self._pages, self._link = pages, PageLink(self._settings, name, pages.layout)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if host_pool_name != PoolName.KV:
            raise ConfigError(
                f"the host pool '{host_pool_name}' is a {type(host_pool).__name__}: HiCacheNode knows that of KV alone; "
                "use --enable-lmcache"
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading pages the server has; those of lower tiers are in its memory then."""
        hashes, link = digests(keys), self._registered()[0]
        return link.count(hashes) if hashes and self._weights.are_as_at_the_start else 0

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        for transfer in pool_transfers or []:
            _check_kv(transfer)
        hits = self.batch_exists(keys)
        return PoolTransferResult(hits, {PoolName.KV: hits} if hits else {}, list(range(1, hits + 1)))

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._load(keys, self._registered()[1].pages_of(host_indices))

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._store(keys, self._registered()[1].pages_of(host_indices))

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {_check_kv(each): self.batch_get_v1(*_of_transfer(each)) for each in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {_check_kv(each): self.batch_set_v1(*_of_transfer(each)) for each in transfers}

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Into a flat page of the host, which is what SGLang asks for without `interface_v1`."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        targets = list(target_locations or [])
        loaded = self._load(keys, [self._registered()[1].flat(each) for each in targets])
        return [target if is_loaded else None for target, is_loaded in zip(targets, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self._store(keys, [self._registered()[1].flat(each) for each in values or []]))

    def clear(self) -> None:
        """Does nothing, and says so: other engines have the same pages."""
        logger.error(
            "HiCacheNode cleared nothing: other engines use the server's pages; `lmcache clear` drops those in L1"
        )

    def close(self) -> None:
        """Ends the connection.  May be called again."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _shard(self, pages: _HostPages) -> tuple[int, ...]:
        """Rank and size of each way in which pages are divided.  Of MLA each rank has all, and SGLang lets one store it."""
        config = self._config
        is_whole = config.is_mla_model and pages.planes == 1
        ranks = (0, 1) if is_whole else (config.tp_rank, config.tp_size)
        return (*ranks, config.pp_rank, config.pp_size, config.attn_cp_rank, config.attn_cp_size)

    def _registered(self) -> tuple[PageLink, _HostPages]:
        link, pages = self._link, self._pages
        if link is None or pages is None:
            raise LMCacheError("SGLang has registered no host pool, or has closed this storage")
        return link, pages

    def _load(self, keys: Sequence[str], pages: Sequence[Page]) -> list[bool]:
        """Which of them, from the first on, are in the pool now as they were stored."""
        hashes, link = _hashes(keys, pages), self._registered()[0]
        name = f"load-{uuid.uuid4().hex}"
        hits = link.lookup(name, hashes) if hashes and self._weights.are_as_at_the_start else 0
        try:
            if hits:
                with link.reading(name, hashes[:hits]) as places:
                    for place, page in zip(places, pages[:hits], strict=True):
                        for at, piece in _runs(place, page):
                            ctypes.memmove(piece.address, at, piece.length)
        except LMCacheError as error:
            logger.warning("%d pages were not loaded error=%s", hits, error)
            hits = 0
        finally:
            link.end(name)
        return _first(hits, len(hashes))

    def _store(self, keys: Sequence[str], pages: Sequence[Page]) -> list[bool]:
        """Which of them, from the first on, the server has now."""
        hashes, link = _hashes(keys, pages), self._registered()[0]
        if not hashes or not link.is_ready() or not self._weights.are_as_at_the_start:
            return _first(0, len(hashes))
        try:
            with link.writing(hashes) as (missing, places):
                for number, place in zip(missing, places, strict=True):
                    for at, piece in _runs(place, pages[number]):
                        ctypes.memmove(at, piece.address, piece.length)
            stored = len(hashes) if len(missing) == len(hashes) else link.count(hashes)
        except LMCacheError as error:
            logger.warning("%d pages were not stored error=%s", len(hashes), error)
            stored = 0
        return _first(stored, len(hashes))


class _HostPages:
    """Where the pages of a host pool lie.  The pool gives the addresses (`get_page_buffer_meta`), K and V of a run in turns;
    an object has all K first, as a flat page of SGLang has."""

    def __init__(self, pool: Any) -> None:
        """Raises ConfigError for a pool that is not known."""
        _check_pool(pool)
        self._pool, self.planes = pool, 2 if type(pool) is MHATokenToKVPoolHost else 1
        hidden = pool.head_num * pool.head_dim if self.planes == 2 else pool.kv_cache_dim
        layers, hidden = (1, pool.layer_num * hidden) if pool.layout == "page_first" else (pool.layer_num, hidden)
        dtype = str(pool.dtype).removeprefix("torch.")
        self.layout = LayoutPart(self.planes, layers, pool.page_size, hidden, dtype)
        self._bytes = math.prod((self.planes, layers, pool.page_size, hidden, pool.dtype.itemsize))
        (first,) = self.pages_of(torch.arange(pool.page_size))
        if sum(piece.length for piece in first) != self._bytes:
            raise ConfigError(
                f"a page of {type(pool).__name__} in SGLang {sglang.__version__} has {sum(piece.length for piece in first)} "
                f"bytes, and not {self._bytes}, as it had in that for which HiCacheNode was written"
            )

    def pages_of(self, indices: torch.Tensor) -> list[Page]:
        """Raises ValueError for slots that do not fill whole pages of the pool."""
        count = len(page_numbers(indices, self._pool.page_size, self._pool.size // self._pool.page_size))
        if not count:
            return []
        pieces = [Piece(*each) for each in zip(*self._pool.get_page_buffer_meta(indices), strict=True)]
        length = len(pieces) // count
        pages = [pieces[first : first + length] for first in range(0, len(pieces), length)]
        return [[piece for plane in range(self.planes) for piece in page[plane :: self.planes]] for page in pages]

    def flat(self, page: Any) -> Page:
        """Raises ValueError for what is not a page in one run of the host's memory."""
        if not isinstance(page, torch.Tensor) or page.device.type != "cpu" or not page.is_contiguous():
            raise ValueError(f"a flat page is a contiguous tensor of the host, and not {page!r:.80}")
        if page.nbytes != self._bytes:
            raise ValueError(f"a flat page of {page.nbytes} bytes; the pool's have {self._bytes}")
        return [Piece(page.data_ptr(), page.nbytes)]


def _check_pool(pool: Any) -> None:
    name = type(pool).__name__
    if type(pool) not in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
        raise ConfigError(
            f"the host pool is a {name}: HiCacheNode knows MHATokenToKVPoolHost and MLATokenToKVPoolHost; use --enable-lmcache"
        )
    if pool.layout not in LAYOUTS:
        raise ConfigError(
            f"the host pool {name} has the layout {pool.layout}; choose --hicache-mem-layout {', '.join(LAYOUTS)}"
        )
    if pool.kv_buffer is None or pool.dcp_size != 1 or pool.layer_num != pool.target_layer_num:
        raise ConfigError(
            f"the host pool {name} has no memory, pages that ranks divide, or layers of a draft model: HiCacheNode knows "
            "none of these; use --enable-lmcache"
        )
    if pool.page_size < PAGE_SIZE_MIN:
        raise ConfigError(
            f"--page-size {pool.page_size}: each page is an object of the server; choose {PAGE_SIZE_MIN} or more"
        )


def _check_kv(transfer: Any) -> Any:
    """Its name."""
    if transfer.name != PoolName.KV:
        raise ValueError(f"a transfer of the pool {transfer.name}: only that of KV is known")
    return transfer.name


def _of_transfer(transfer: Any) -> tuple[list[str], torch.Tensor]:
    indices = transfer.host_indices
    return list(transfer.keys or []), torch.empty(0, dtype=torch.int64) if indices is None else indices


def _hashes(keys: Sequence[str], pages: Sequence[Page]) -> list[bytes]:
    if len(keys) != len(pages):
        raise ValueError(f"{len(keys)} hashes for {len(pages)} pages")
    return digests(keys)


def _runs(place: memoryview, page: Page) -> Iterator[tuple[int, Piece]]:
    """Each piece of a page, and its address in the object."""
    at = torch.frombuffer(place, dtype=torch.uint8).data_ptr()
    for piece in page:
        yield at, piece
        at += piece.length


def _first(hits: int, count: int) -> list[bool]:
    return [True] * hits + [False] * (count - hits)
