"""The residency feed of one L2 adapter: what this server has stored in it, found in it and deleted from it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lmcache_client.errors import LMCacheError
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.residency import Change, ChangeKind, SnapshotPart
from lmcache_core.l1.journal import Journal, JournalFeed
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.results import Outcome

if TYPE_CHECKING:
    from lmcache_core.controllers.adapter_client import AdapterClient
    from lmcache_core.controllers.adapter_jobs import PendingJob

_GONE: Final = (Outcome.DONE, Outcome.MISSING)


class AdapterFeed(JournalFeed):
    """Implements `contracts.residency.ResidencyFeed`."""

    def __init__(self, client: AdapterClient, backend: str) -> None:
        super().__init__(Journal(), threading.Lock())
        self._client = client
        self.backend: Final = backend

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def is_shared(self) -> bool:
        return Capability.SHARED in self._client.capabilities

    @property
    def epoch(self) -> int:
        return self._client.index + 1

    def snapshot(self, keys: int) -> Iterator[SnapshotPart]:
        """A listing of the backend.  Raises LMCacheError where a page cannot be listed."""
        begins_at, cursor = self.journal.end, None
        while True:
            page = self._client.list_keys(cursor, keys)
            if page is None:
                raise LMCacheError(f"adapter '{self.name}' could not list its keys; its log says why")
            sizes = page.sizes or (0,) * len(page.keys)
            yield SnapshotPart(begins_at, list(_runs(ChangeKind.STORE, zip(page.keys, sizes, strict=True))))
            if page.cursor is None:
                return
            cursor = page.cursor

    def answered(self, pending: PendingJob, outcomes: Sequence[Outcome]) -> None:
        """A job has ended.  For the client, while the journal is open."""
        if pending.verb == "load":
            return
        pairs = zip(pending.subjects, outcomes, strict=True)
        match pending.verb:
            case "store":
                done = ((item.key, item.buffer.length) for item, outcome in pairs if outcome is Outcome.DONE)
                runs = _runs(ChangeKind.STORE, done)
            case "lookup":
                runs = _runs(ChangeKind.ACCESS, ((key, 0) for key, outcome in pairs if outcome is Outcome.DONE))
            case _:
                runs = _runs(ChangeKind.DELETE, ((key, 0) for key, outcome in pairs if outcome in _GONE))
        with self._lock:
            for run in runs:
                self.journal.record(run.kind, run.space, run.object_bytes, run.hashes)


def _runs(kind: ChangeKind, objects: Iterable[tuple[ObjectKey, int]]) -> Iterator[Change]:
    groups: dict[tuple[KeySpace, int], list[bytes]] = {}
    for key, size in objects:
        groups.setdefault((key.space, size), []).append(key.chunk_hash)
    return (Change(kind, space, size, b"".join(names)) for (space, size), names in groups.items())
