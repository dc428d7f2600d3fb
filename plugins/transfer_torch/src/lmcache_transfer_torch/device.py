"""Who copies: the seam between the request module, which knows chunks, and a device, which knows bytes.

The module imports what a worker registered (`Device.open_memory`), and hands over one job for each store or retrieve.
A job is finished on the caller's thread (CPU) or later (CUDA): its callback says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.descriptors import Storage

Done = Callable[[bool], None]
"""Called exactly once for each job that was taken, from any thread, perhaps before `submit_*` has returned.  True: every
byte has arrived.  False: it failed.  Either way the device touches neither side of this job any more.  Must not raise."""


class DeviceError(Exception):
    """A device is not available, or memory of a worker cannot be imported or reached.  Its text is for the operator."""


class AbortedTransferError(DeviceError):
    """A job failed on its way, and something of it may still run.  `done` is called when nothing does any more."""

    def __init__(self, reason: str, event: bytes) -> None:
        super().__init__(reason)
        self.event = event
        """The handle of the event behind what still runs; empty: nothing of it reaches the worker's cache any more."""


@dataclass(frozen=True, slots=True)
class TransferPart:
    """The chunks of one kernel group in a job."""

    group: int
    """Index among the worker's kernel groups."""
    blocks: Sequence[int]
    """`blocks_per_chunk` ids for each object, each checked to lie in the worker's cache; -1: leave that block alone (the
    engine has none there, or must not be overwritten there)."""
    objects: Sequence[int]
    """Addresses in this process where the region of this kernel group begins in each chunk object; they lie in L1."""


@dataclass(frozen=True, slots=True)
class TransferJob:
    """All copies of one store or retrieve."""

    parts: tuple[TransferPart, ...]
    ready: bytes
    """The worker's event handle: no byte of its cache is read or written before that event.  Only the device knows what
    it means."""


class WorkerMemory(Protocol):
    """The paged KV cache of one worker, as this process reaches it.  Any thread."""

    @property
    def swift_bytes(self) -> int:
        """Largest job in bytes that takes no longer than handing it to another thread does, and waits for nothing:
        it may be submitted on the thread that receives requests.  0: none may."""

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        """Copy from the worker's blocks into L1.  Returns the handle of the event that the worker waits for before it
        writes to these blocks again.  Raises DeviceError, and never calls `done` then, when nothing was begun, and
        AbortedTransferError when it failed on its way."""

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        """Copy from L1 into the worker's blocks, as `submit_gather` does in the other direction."""

    def close(self) -> None:
        """The worker has left: take no more jobs.  Each job under way is still called back, and its memory is released after
        the last of them.  Does not wait."""


class Device(Protocol):
    """One kind of device (`cpu`, `cuda`), for all workers that live on it.  Any thread."""

    @property
    def name(self) -> str:
        """The kind of device for the detection of a layout: `cpu` or `cuda`."""

    def open_memory(self, storages: Sequence[Storage], groups: Sequence[PagedGroup], chunk_tokens: int) -> WorkerMemory:
        """Import the storages that a worker described; `PagedGroup.bases` name them by their index.  Raises DeviceError,
        with nothing imported, when one is not available or is smaller than it says."""

    def status(self) -> dict[str, object]:
        """What an operator should see of it."""

    def close(self) -> None:
        """The server stops: calls back whatever is under way, and releases everything.  Blocks until no copy runs."""
