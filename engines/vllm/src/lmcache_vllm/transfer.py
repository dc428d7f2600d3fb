"""Stores and loads without vLLM: for benchmarks, tools and other engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from lmcache_client import LMCacheError
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.metadata import Transfer
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.transfer_copiers import copier_for
from lmcache_vllm.transfer_load import load
from lmcache_vllm.transfer_pages import ChunkPages
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_store import store
from lmcache_vllm.transfer_task import Outcome, TransferTask

START_SECONDS: Final = 10.0
HEARTBEAT_SECONDS: Final = 5.0


class BlockTransfers:
    """One worker's connection, used by the thread that calls. Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str,
        placement: Placement,
        tensors: Mapping[str, Any],
        groups: Sequence[CacheGroup],
        *,
        kv_layout: str | None = None,
        timeout_seconds: float = 10.0,
        copy_threads: int = 1,
    ) -> None:
        """Raises LayoutError for pages that are not understood, and LMCacheError when no server takes them."""
        caches = KVCaches(tensors, groups, kv_layout)
        copier = copier_for(caches, copy_threads)
        self._placement = placement
        open_pages: Callable[[int], ChunkPages] = lambda chunk_tokens: ChunkPages(caches, chunk_tokens, copier)  # noqa: E731
        self._session = ServerSession(
            url,
            placement,
            open_pages,
            timeout_seconds=timeout_seconds,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            on_lost=lambda: None,
        )
        self._session.start(START_SECONDS)
        with self._session.use() as registration:
            if registration is None:
                reason = self._session.failure_reason
                self.close()
                raise LMCacheError(f"no cache at {url}: {reason or 'no answer'}")
            self.chunk_tokens = registration.pages.chunk_tokens
            self.chunk_bytes = registration.pages.payload_bytes

    def close(self) -> None:
        self._session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def store(self, transfer: Transfer) -> Outcome:
        """Store the chunks that the server does not have; returns when they are visible to all engines."""
        return store(TransferTask(transfer), self._session, self._placement, lambda: None)

    def load(self, transfer: Transfer) -> Outcome:
        """Load all chunks of the range, or none."""
        return load(TransferTask(transfer), self._session, self._placement)
