"""One store or retrieve while its bytes move, and all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from lmcache_core import SlotReferences, Storage
from lmcache_transfer_torch.device import AbortedTransferError, DeviceError, Done

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 256
"""Transfers that one worker may have under way."""

Submit = Callable[[Done], bytes]
"""Hands one job to a device, as `WorkerMemory.submit_*` do."""
Finish = Callable[[bool], bool]
"""Gets whether the bytes arrived; returns whether the transfer succeeded.  The references are the worker's own again."""


class Transfer:
    """Keeps slots in use until the device has called back.  `finish` runs once, on the thread that calls back."""

    def __init__(self, owner: Transfers, token: int, uses: ExitStack, finish: Finish) -> None:
        self._owner, self._uses, self._finish = owner, uses, finish
        self.token: Final = token
        self._lock = threading.Lock()
        self._ended = False
        self.succeeded: bool | None = None
        """None while it is under way."""

    def done(self, arrived: bool) -> None:
        """What the device calls.  Never raises; later calls are ignored."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        try:
            self._uses.close()
            self.succeeded = self._finish(arrived)
        except Exception:  # a device's boundary: its thread must not end for what happens here
            logger.exception("a transfer could not be finished")
            self.succeeded = False
        finally:
            self._owner.ended(self)


@dataclass(frozen=True, slots=True)
class TransferCounts:
    """Since the server started."""

    in_flight: int
    failed: int
    stored_bytes: int
    retrieved_bytes: int


class Transfers:
    """Any thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._under_way: dict[int, set[Transfer]] = {}
        self._failed = self._stored = self._retrieved = 0

    def counts(self) -> TransferCounts:
        with self._lock:
            in_flight = sum(map(len, self._under_way.values()))
            return TransferCounts(in_flight, self._failed, self._stored, self._retrieved)

    def has_room(self, token: int) -> bool:
        """May this worker begin another one?"""
        with self._lock:
            return len(self._under_way.get(token, ())) < IN_FLIGHT_MAX

    def moved(self, stored: int = 0, retrieved: int = 0) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._stored += stored
            self._retrieved += retrieved

    def begin(self, token: int, held: Sequence[SlotReferences], submit: Submit, finish: Finish) -> tuple[bytes, bool]:
        """Hand a job to the device by `submit`.  Returns the event that the worker waits for (empty: none), and False when the
        transfer has failed; until that event the device may still touch the worker's blocks.  `finish` is called in each
        case: here, or when the device calls back."""
        uses = ExitStack()
        transfer = Transfer(self, token, uses, finish)
        with self._lock:
            self._under_way.setdefault(token, set()).add(transfer)
        if not all(uses.enter_context(self._storage.using(references)) for references in held):
            transfer.done(False)  # a deadline passed, or the worker left
            return b"", False
        try:
            event = submit(transfer.done)
        except AbortedTransferError as aborted:
            return aborted.event, False
        except DeviceError as error:
            logger.error("a transfer was refused by its device reason=%s", error)
            transfer.done(False)
            return b"", False
        except Exception:  # a device's boundary: what it has begun is unknown, so its slots stay where they are
            logger.exception("a device failed; what it was given stays held until it is closed")
            return b"", False
        return (b"", False) if transfer.succeeded is False or not event else (event, True)

    def ended(self, transfer: Transfer) -> None:
        with self._lock:
            mine = self._under_way.get(transfer.token, set())
            mine.discard(transfer)
            if not mine:
                self._under_way.pop(transfer.token, None)
            self._failed += transfer.succeeded is False

    def abandon(self) -> None:
        """The devices are closed: nothing is touched any more, whatever they have forgotten to say."""
        with self._lock:
            left = [transfer for mine in self._under_way.values() for transfer in mine]
        for transfer in left:
            transfer.done(False)
