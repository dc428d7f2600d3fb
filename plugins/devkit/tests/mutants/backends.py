"""Adapters on a backend that others use, that fails, or that runs for weeks."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import defaultdict
from typing import ClassVar

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, ObjectKey, Outcome
from plugins.devkit.tests.mutants.file_adapter import CAPABILITIES, FileAdapter, FileSettings
from plugins.devkit.tests.mutants.planted import Planted
from plugins.devkit.tests.mutants.requirements_of_mutants import FileSuite, offer_of


class SharedFiles(FileAdapter):
    """Right in everything; each mutant below is wrong in one thing.  Several servers may use one root, so that what is there is
    counted where it is."""

    capabilities = (CAPABILITIES | Capability.SHARED) & ~Capability.USAGE

    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.remembered: set[str] = set()
        super().__init__(settings, context)

    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        temporary = self.root / f"{uuid.uuid4().hex}.tmp"
        temporary.write_bytes(buffer.view)
        os.rename(temporary, self.path(key))

    def usage(self) -> None:  # type: ignore[override]
        """Others store there, too."""
        return


PLANTED = Planted("backends.py", SharedFiles)


@PLANTED.killed_by("what_another_stores_is_found_although_it_was_missed_before", "still MISSING")
class RemembersWhatIsMissing(SharedFiles):
    def contains(self, key: ObjectKey) -> bool:
        if self.name(key) in self.remembered:
            return False
        found = super().contains(key)
        if not found:
            self.remembered.add(self.name(key))
        return found

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().store(key, buffer)
        self.remembered.discard(self.name(key))
        return outcome


@PLANTED.killed_by("what_another_deleted_is_not_a_hit_although_it_was_found_before")
class RemembersWhatIsThere(SharedFiles):
    def contains(self, key: ObjectKey) -> bool:
        if self.name(key) not in self.remembered and super().contains(key):
            self.remembered.add(self.name(key))
        return self.name(key) in self.remembered

    def delete(self, key: ObjectKey) -> Outcome:
        self.remembered.discard(self.name(key))
        return super().delete(key)


@PLANTED.killed_by("two_processes_see_what_the_other_does", "still MISSING")
class RemembersForTheProcess(SharedFiles):
    """As libraries do that have one connection, and one cache, for the process."""

    missing: ClassVar[defaultdict[str, set[str]]] = defaultdict(set)

    def contains(self, key: ObjectKey) -> bool:
        if self.name(key) in self.missing[str(self.root)]:
            return False
        found = super().contains(key)
        if not found:
            self.missing[str(self.root)].add(self.name(key))
        return found

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().store(key, buffer)
        self.missing[str(self.root)].discard(self.name(key))
        return outcome


@PLANTED.killed_by("what_was_deleted_is_gone")
class RemembersWhatItHasDeleted(SharedFiles):
    def contains(self, key: ObjectKey) -> bool:
        if self.name(key) not in self.remembered and super().contains(key):
            self.remembered.add(self.name(key))
        return self.name(key) in self.remembered


@PLANTED.killed_by("loads_at_once_do_not_share_memory")
class ReadsThroughOneBuffer(SharedFiles):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.scratch = bytearray(2**20 + 4096)
        super().__init__(settings, context)

    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        if buffer.length > len(self.scratch):
            return super().fill(fd, buffer)
        scratch = memoryview(self.scratch)[: buffer.length]
        if os.preadv(fd, [scratch], 0) != buffer.length:
            return Outcome.DAMAGED
        time.sleep(0.0005)  # for others to read into it, also on a busy machine
        buffer.view[:] = scratch
        return Outcome.DONE


@PLANTED.killed_by("a_pinned_object_is_not_evicted_for_others")
class EvictsByChance(SharedFiles):
    def reserve(self, size: int) -> bool:
        while not super().reserve(size):
            victim = random.choice(list(self.sizes))
            del self.sizes[victim]
            (self.root / f"{victim}.kv").unlink(missing_ok=True)
        return True


@PLANTED.killed_by("a_store_that_the_backend_fails_is_not_done")
class StoresOrNot(SharedFiles):
    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        try:
            return super().store(key, buffer)
        except OSError:
            return Outcome.DONE


@PLANTED.killed_by("a_load_that_the_backend_fails_is_neither_done_nor_missing")
class LoadsOrNot(SharedFiles):
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        try:
            return super().load(key, buffer)
        except OSError:
            return Outcome.MISSING


@PLANTED.killed_by("a_lookup_that_the_backend_fails_is_not_missing")
class LooksOrNot(SharedFiles):
    def contains(self, key: ObjectKey) -> bool:
        try:
            return super().contains(key)
        except OSError:
            return False


@PLANTED.killed_by("a_delete_that_the_backend_fails_is_neither_done_nor_missing")
class DeletesOrNot(SharedFiles):
    def delete(self, key: ObjectKey) -> Outcome:
        try:
            return super().delete(key)
        except OSError:
            return Outcome.MISSING


@PLANTED.killed_by("what_was_deleted_is_gone", "did not come within 3 s")
class NeverReturnsFromDelete(SharedFiles):
    def delete(self, key: ObjectKey) -> Outcome:
        threading.Event().wait()
        return super().delete(key)


@PLANTED.killed_by("after_it_has_failed_everything_is_there_as_before")
class GivesUpForEver(SharedFiles):
    """It takes the first error for the end of its backend."""

    broken = False

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        try:
            self.path(key)
        except OSError:
            self.broken = True
        if self.broken:
            raise OSError("the backend is broken")
        return super().load(key, buffer)


@PLANTED.killed_by("memory_does_not_grow_with_stores", "bytes more after each store")
class KeepsAKilobyteOfEachStore(SharedFiles):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.headers: list[bytes] = []
        super().__init__(settings, context)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.headers.append(bytes(buffer.view[:1024]))
        return super().store(key, buffer)


globals().update(PLANTED.suites(FileSuite, __name__, offer_of))
