"""Deleting from an adapter what an operator names: single keys, or everything of a model or a tenant.

Each deletion has a thread, which asks for a slice at a time, so that stores and loads of the adapter come in between.
What the adapter keeps for a load is skipped: it says so itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.l2_listing import L2Listing
from lmcache_core import AdapterAccess, Capability, Clock, LMCacheError, NoSuchAdapterError, ObjectKey, Outcome

logger = logging.getLogger(__name__)

SLICE: Final = 256
"""Objects of one job."""
FAILED_SLICES_MAX: Final = 4
"""Slices in a row of which nothing could be deleted because the adapter failed, until the deletion stops."""
KEPT_MAX: Final = 64
KEPT_SECONDS: Final = 3600.0
"""How long, and for how many, what came of a deletion can be asked for."""


class DeletionRefusedError(LMCacheError):
    """Not now.  The message says why."""


class DeletionState(Enum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False)
class Deletion:
    """Written by its own thread, read by any.  `deleted + missing + skipped + failed` is what was dealt with so far."""

    deletion_id: str
    adapter: str
    state: DeletionState = DeletionState.RUNNING
    deleted: int = 0
    missing: int = 0
    """Were gone already."""
    skipped: int = 0
    """Stay, because they are being loaded."""
    failed: int = 0
    error: str = ""
    ended_at: float | None = None
    """Monotonic."""
    done: threading.Event = field(default_factory=threading.Event)


class L2Deletions:
    """Safe from any thread.  One deletion at a time for each adapter."""

    def __init__(self, keys: L2Listing, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()  # guards the dictionary
        self._deletions: dict[str, Deletion] = {}
        self._stopping = threading.Event()

    def delete_keys(self, adapter: str | None, keys: Sequence[ObjectKey]) -> Deletion:
        """Begin to delete these.  Raises what `L2Listing.client` does, and DeletionRefusedError."""
        client = self._keys.client(adapter, Capability.DELETE)
        return self._begin(client, lambda: iter((list(dict.fromkeys(keys)),)))

    def delete_matching(self, adapter: str | None, only: KeyFilter) -> Deletion:
        """Begin to delete everything that passes; where everything does, objects of other format versions, too.  Raises the
        same."""
        client = self._keys.client(adapter, Capability.DELETE | Capability.LIST)
        return self._begin(client, lambda: self._listed(client, only), everything=only == KeyFilter())

    def find(self, deletion_id: str) -> Deletion | None:
        with self._lock:
            self._forget_old()
            return self._deletions.get(deletion_id)

    def stop(self) -> None:
        """Running deletions end with the slice that is under way.  Before the adapters are closed."""
        self._stopping.set()

    def _begin(
        self, client: AdapterAccess, batches: Callable[[], Iterator[Sequence[ObjectKey]]], *, everything: bool = False
    ) -> Deletion:
        deletion = Deletion(f"deletion-{secrets.token_hex(8)}", client.name)
        with self._lock:
            self._forget_old()
            for other in self._deletions.values():
                if other.adapter == client.name and not other.done.is_set():
                    raise DeletionRefusedError(
                        f"adapter '{client.name}' is deleting already ({other.deletion_id}); ask again when that has ended"
                    )
            self._deletions[deletion.deletion_id] = deletion
        run = threading.Thread(
            target=self._run, args=(deletion, client, batches, everything), name=f"l2-delete-{client.name}", daemon=True
        )
        try:
            run.start()
        except RuntimeError as error:  # the system has no more
            with self._lock:
                del self._deletions[deletion.deletion_id]
            raise DeletionRefusedError(f"no thread to delete with: {error}") from None
        return deletion

    def _run(
        self,
        deletion: Deletion,
        client: AdapterAccess,
        batches: Callable[[], Iterator[Sequence[ObjectKey]]],
        everything: bool,
    ) -> None:
        try:
            self._delete(deletion, client, batches())
            if everything and deletion.state is DeletionState.RUNNING:
                self._delete_other_versions(deletion, client)
            if deletion.state is DeletionState.RUNNING:
                deletion.state = DeletionState.COMPLETED
        except LMCacheError as error:
            deletion.error = str(error)
            deletion.state = DeletionState.FAILED
        except Exception:  # the top of a thread: the deletion must not be shown as running
            logger.exception("deletion failed adapter=%s", client.name)
            deletion.error = "the server failed; its log says why"
            deletion.state = DeletionState.FAILED
        finally:
            deletion.ended_at = self._clock.monotonic()
            deletion.done.set()

    def _delete(self, deletion: Deletion, client: AdapterAccess, batches: Iterable[Sequence[ObjectKey]]) -> None:
        futile = 0
        for batch in batches:
            for begin in range(0, len(batch), SLICE):
                outcomes = (
                    None
                    if self._stopping.is_set()
                    else client.delete(batch[begin : begin + SLICE], self._stopping.is_set)
                )
                if outcomes is None:
                    deletion.state = DeletionState.STOPPED
                    return
                deleted, missing = outcomes.count(Outcome.DONE), outcomes.count(Outcome.MISSING)
                skipped = outcomes.count(Outcome.REJECTED)
                deletion.deleted += deleted
                deletion.missing += missing
                deletion.skipped += skipped
                deletion.failed += len(outcomes) - deleted - missing - skipped
                futile = 0 if deleted + missing + skipped else futile + 1
                if client.is_shut:
                    raise NoSuchAdapterError(f"adapter '{client.name}' was removed meanwhile; the rest was not tried")
                if futile == FAILED_SLICES_MAX:
                    deletion.error = f"adapter '{client.name}' fails to delete; the rest was not tried"
                    deletion.state = DeletionState.FAILED
                    return

    def _delete_other_versions(self, deletion: Deletion, client: AdapterAccess) -> None:
        removed = client.delete_other_versions()
        if removed is None:
            deletion.error = (
                f"adapter '{client.name}' fails to delete objects of other format versions; the log says why"
            )
            deletion.state = DeletionState.FAILED
        else:
            deletion.deleted += removed

    def _listed(self, client: AdapterAccess, only: KeyFilter) -> Iterator[Sequence[ObjectKey]]:
        cursor: str | None = None
        while not self._stopping.is_set():
            page = self._keys.page(client, cursor, SLICE, only)
            yield page.keys
            if (cursor := page.cursor) is None:
                return

    def _forget_old(self) -> None:
        """Under the lock."""
        now = self._clock.monotonic()
        ended = [deletion for deletion in self._deletions.values() if deletion.ended_at is not None]
        for number, deletion in enumerate(reversed(ended)):
            if number >= KEPT_MAX or now - (deletion.ended_at or now) > KEPT_SECONDS:
                del self._deletions[deletion.deletion_id]
