"""An adapter that lists and deletes, and misbehaves on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from core.tests.storage.scripted_adapter import ScriptedAdapter
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.results import KeyPage, Outcome
from lmcache_devkit.fake_clock import FakeClock


def key(number: int, model: str = "m", salt: str = "") -> ObjectKey:
    return ObjectKey(KeySpace(model, 1, 0, salt, 16, HashChain.BLAKE3, bytes(16)), number.to_bytes(32, "big"))


class Shelf(ScriptedAdapter):
    """Deletes at once.  Any thread."""

    capabilities = Capability.DELETE | Capability.LIST | Capability.SHARED

    def __init__(self, keys: Sequence[ObjectKey] = ()) -> None:
        super().__init__()
        self.shelved = dict.fromkeys(keys)
        self.kept: set[ObjectKey] = set()
        """REJECTED when they are to be deleted."""
        self.broken = False
        self.goes_on = threading.Event()
        """Cleared: listing hangs."""
        self.goes_on.set()
        self.calls: list[tuple[str | None, int]] = []
        self.slices: list[int] = []
        self.answers = True
        self.other_versions = 0
        """Objects that only deleting everything reaches; negative: that fails."""

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        self.calls.append((cursor, limit))
        self.goes_on.wait(10)
        if self.broken:
            raise OSError("the shelf fell down")
        after = [each for each in sorted(self.shelved, key=self._place) if cursor is None or self._place(each) > cursor]
        page = after[:limit]
        return KeyPage(tuple(page), self._place(page[-1]) if len(after) > limit else None)

    def delete_other_versions(self) -> int:
        if self.other_versions < 0:
            raise OSError("the shelf fell down")
        removed, self.other_versions = self.other_versions, 0
        return removed

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        self.slices.append(len(keys))
        job = JobId(next(self._numbers))
        if self.answers:
            self._completions.post(JobDone(job, tuple(self._delete(each) for each in keys)))
        return job

    def _delete(self, one: ObjectKey) -> Outcome:
        if self.broken:
            return Outcome.FAILED
        if one in self.kept:
            return Outcome.REJECTED
        return Outcome.DONE if self.shelved.pop(one, one) is None else Outcome.MISSING

    @staticmethod
    def _place(one: ObjectKey) -> str:
        return one.canonical.hex()


def port_of(shelf: Shelf, name: str = "shelf", index: int = 0) -> AdapterClient:
    return AdapterClient(index, name, shelf, shelf.capabilities, FakeClock(), 30.0)


def wait_for(done: Callable[[], bool], *clients: AdapterClient) -> None:
    """Deliver what the adapters say until it is so."""
    for _ in range(5000):
        for client in clients:
            client.deliver()
        if done():
            return
        time.sleep(0.002)
    raise AssertionError("it did not come to that")
