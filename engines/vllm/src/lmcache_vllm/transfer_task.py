"""One transfer on its way: who may still touch the blocks, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from lmcache_client import EngineKey
from lmcache_vllm.metadata import Transfer
from lmcache_vllm.placement import Placement


class CancelledError(Exception):
    """The transfer was cancelled."""


class TransferTask:
    """A transfer, shared by the thread that copies and those that may call it off."""

    def __init__(self, transfer: Transfer, after: Callable[[], None] | None = None) -> None:
        """`after` waits until the device has done what it was given before this transfer."""
        self.transfer = transfer
        self._began = time.monotonic()
        self._after = after
        self._touching = threading.Lock()
        self._cancelled = False
        self._copies = False

    @property
    def chunks(self) -> int:
        return self.transfer.chunks

    @property
    def seconds(self) -> float:
        """Since it was ordered."""
        return time.monotonic() - self._began

    @property
    def copies(self) -> bool:
        """Whether it has begun to copy: what is left of it takes as long as the memory does, not the server."""
        return self._copies

    def cancel(self) -> None:
        """No block of this transfer is read or written once this returns; it waits for the copy of a batch at most."""
        self._cancelled = True
        with self._touching:
            pass

    @contextmanager
    def touching(self) -> Iterator[None]:
        """Around every copy. Raises CancelledError when it was called off."""
        if self._after is not None:
            self._after()
            self._after = None
        with self._touching:
            if self._cancelled:
                raise CancelledError
            self._copies = True
            yield

    def key(self, placement: Placement) -> EngineKey:
        """What the server knows this transfer by."""
        transfer = self.transfer
        return EngineKey(
            placement.key_name(transfer.variant, approximate=transfer.approximate),
            placement.world_size,
            placement.worker_id,
            msgspec.Raw(transfer.tokens),
            transfer.start,
            transfer.end,
            transfer.request_id,
            transfer.cache_salt,
            dict(transfer.request_configs) if transfer.request_configs is not None else None,
            placement.readers,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transfer ended."""

    bytes: int = 0
    failure: str = ""
    """Why it failed, in a word; empty: it did not."""
    failed_chunks: range = range(0)
    """Of a load: chunks, counted from its start, whose blocks do not have the right bytes."""
