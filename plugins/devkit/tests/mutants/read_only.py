"""Adapters that read what others have put there: a right one and mutants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    Capability,
    CompletionQueue,
    JobId,
    JobTable,
    KeyPage,
    ObjectKey,
    Offer,
    Outcome,
    StoreItem,
)
from lmcache_devkit import L2AdapterSuite, Media
from plugins.devkit.tests.mutants.file_adapter import FileAdapter, FileSettings
from plugins.devkit.tests.mutants.planted import Planted
from plugins.devkit.tests.mutants.requirements_of_mutants import ObjectFiles


class Reads(FileAdapter):
    """Files that another program writes; each mutant below is wrong in one thing."""

    capabilities = Capability.READ_ONLY

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return Outcome.REJECTED

    def delete(self, key: ObjectKey) -> Outcome:
        return Outcome.REJECTED

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)


PLANTED = Planted("read_only.py", Reads)


@PLANTED.killed_by("a_store_to_what_is_read_only_is_refused_and_released", "DONE")
class Writes(Reads):
    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.write(key, buffer)
        return Outcome.DONE


@PLANTED.killed_by("a_store_to_what_is_read_only_is_refused_and_released", "DONE")
class SaysThatItIsThere(Reads):
    """It offers what it has refused."""

    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.offered = set[bytes]()
        super().__init__(settings, context)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.offered.add(key.object_id)
        return Outcome.REJECTED

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self.offered or super().contains(key)


@PLANTED.killed_by("a_store_to_what_is_read_only_is_refused_and_released", "release")
class KeepsTheBuffersOfStores(Reads):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        super().__init__(settings, context)
        queue = self.completions()
        assert isinstance(queue, CompletionQueue)
        self.opened = JobTable(queue)

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        job = self.opened.open(len(batch), lends_buffers=True)
        for place in range(len(batch)):
            self.opened.report(job, place, Outcome.REJECTED)
        return job.id


@PLANTED.killed_by("what_is_read_only_is_not_deleted_from_here")
class Deletes(Reads):
    def delete(self, key: ObjectKey) -> Outcome:
        return FileAdapter.delete(self, key)


@PLANTED.killed_by("what_is_read_only_is_not_deleted_from_here", "contradict")
class DeclaresDeletion(Reads):
    capabilities = Capability.READ_ONLY | Capability.DELETE


@PLANTED.killed_by("what_has_left_where_it_is_read_from_is_not_a_hit")
class RemembersItsHits(Reads):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.seen = set[bytes]()
        super().__init__(settings, context)

    def contains(self, key: ObjectKey) -> bool:
        if super().contains(key):
            self.seen.add(key.object_id)
        return key.object_id in self.seen


@PLANTED.killed_by("what_was_rejected_is_not_offered_again")
class OffersWhatWasRejected(Reads):
    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        pass


@PLANTED.killed_by("each_key_of_a_load_has_its_own_outcome")
class FillsWhatIsTooShort(Reads):
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().load(key, buffer)
        return Outcome.DONE if outcome is Outcome.DAMAGED else outcome


class ReadsSuite(L2AdapterSuite):
    wait_seconds: ClassVar[float] = 3.0
    open_close_rounds = 40
    payload_bytes_max = 0

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"root": str(tmp_path / "kv")}

    @pytest.fixture
    def media(self, tmp_path: Path) -> Media:
        return ObjectFiles(tmp_path / "kv")


def offer_of(adapter: type[FileAdapter]) -> Offer:
    return Offer(
        adapter.__name__,
        "",
        f"{adapter.__module__}:{adapter.__name__}",
        f"{FileSettings.__module__}:FileSettings",
        adapter.capabilities,
    )


globals().update(PLANTED.suites(ReadsSuite, __name__, offer_of))
