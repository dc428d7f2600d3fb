"""Numbers and lists that are not true."""

from __future__ import annotations

import time

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, KeyPage, ObjectKey, Outcome
from plugins.devkit.tests.mutants.file_adapter import CAPABILITIES, FileAdapter, FileSettings, killed_by


@killed_by("usage_is_the_same_after_closing_and_opening_again")
class ForgetsItsUsage(FileAdapter):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        super().__init__(settings, context)
        self.sizes = {}


@killed_by("one_key_that_many_threads_store_is_one_object")
class CountsTwice(FileAdapter):
    """Notes each store, not each object."""

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().store(key, buffer)
        with self.lock:
            self.sizes[f"{self.name(key)}-{next(self.numbers)}"] = 0
        return outcome


@killed_by("usage_is_exact")
class CountsWhatWasDeleted(FileAdapter):
    def delete(self, key: ObjectKey) -> Outcome:
        size = self.sizes.get(self.name(key), 0)
        outcome = super().delete(key)
        self.sizes[f"{self.name(key)}-gone"] = size
        return outcome


@killed_by("of_many_writers_for_the_last_place_no_more_get_it")
class ReservesNothing(FileAdapter):
    def reserve(self, size: int) -> bool:
        with self.lock:
            fits = self.capacity_bytes is None or self.used() + size <= self.capacity_bytes
        time.sleep(0.002)
        with self.lock:
            self.reserved += size
        return fits


@killed_by("a_pinned_object_is_not_evicted_for_others")
class EvictsWhatIsPinned(FileAdapter):
    def reserve(self, size: int) -> bool:
        while not super().reserve(size):
            oldest = next(iter(self.sizes))
            del self.sizes[oldest]
            (self.root / f"{oldest}.kv").unlink(missing_ok=True)
        return True


@killed_by("a_listing_names_every_object_once")
class ListSkips(FileAdapter):
    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        page = super().list_keys(cursor, limit)
        return page._replace(keys=page.keys[:-1]) if len(page.keys) > 2 else page


@killed_by("a_listing_survives_deletes_between_two_pages")
class ListCounts(FileAdapter):
    """Its cursor is a number of objects, so what was deleted moves the rest."""

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        everything = super().list_keys(None, 1_000_000).keys
        start = int(cursor or 0)
        keys = everything[start : start + limit]
        return KeyPage(keys, str(start + limit) if len(keys) == limit else None)


@killed_by("offer_and_adapter_declare_the_same_capabilities")
class DeclaresLess(FileAdapter):
    capabilities = CAPABILITIES & ~Capability.LIST


@killed_by("a_listing_survives_stores_between_two_pages")
class ListRepeats(FileAdapter):
    """The same from the end: what is stored meanwhile moves the rest the other way."""

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        everything = super().list_keys(None, 1_000_000).keys
        end = len(everything) - int(cursor or 0)
        keys = everything[max(end - limit, 0) : end]
        return KeyPage(keys, str(len(everything) - end + limit) if end > limit else None)


@killed_by("a_listing_leaves_out_what_was_deleted")
class ListsWhatWasDeleted(FileAdapter):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.gone: list[ObjectKey] = []
        super().__init__(settings, context)

    def delete(self, key: ObjectKey) -> Outcome:
        self.gone.append(key)
        return super().delete(key)

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        page = super().list_keys(cursor, limit)
        return page._replace(keys=(*page.keys, *self.gone)[:limit]) if page.cursor is None else page


@killed_by("usage_counts_objects_of_every_size")
class CountsPayloadsOnly(FileAdapter):
    def used(self) -> int:
        return sum(max(size - 4096, 0) for size in self.sizes.values())


@killed_by("beyond_its_capacity_it_rejects_and_takes_again_after_a_delete")
class HasNoEnd(FileAdapter):
    def reserve(self, size: int) -> bool:
        with self.lock:
            self.reserved += size
        return True


@killed_by("what_was_rejected_counts_no_more")
class CountsWhatWasRejected(FileAdapter):
    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        size = self.sizes.get(self.name(key), 0)
        done = super().discard(key, outcome)
        self.sizes[f"{self.name(key)}-aside"] = size
        return done
