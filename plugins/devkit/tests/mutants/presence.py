"""Objects that are there and are not, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import BorrowedBuffer, Capability, JobId, ObjectKey, Outcome
from plugins.devkit.tests.mutants.file_adapter import CAPABILITIES, FileAdapter, killed_by


@killed_by("what_was_not_stored_is_missing")
class DoneForAMissingKey(FileAdapter):
    def contains(self, key: ObjectKey) -> bool:
        return True

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.write(key, buffer)
        return Outcome.DONE


@killed_by("what_was_not_stored_is_missing")
class LoadsNothingWithSuccess(FileAdapter):
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().load(key, buffer)
        return Outcome.DONE if outcome is Outcome.MISSING else outcome


@killed_by("what_was_deleted_is_gone")
class DeletesNothing(FileAdapter):
    def delete(self, key: ObjectKey) -> Outcome:
        return Outcome.DONE if self.contains(key) else Outcome.MISSING


@killed_by("what_was_rejected_is_not_offered_again")
class IgnoresReject(FileAdapter):
    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        pass


@killed_by("a_pinned_object_stays_until_its_last_pin_is_gone")
class IgnoresPins(FileAdapter):
    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        self.unpin([*keys] * 5)
        return super().submit_delete(keys)


@killed_by("a_pinned_object_stays_until_its_last_pin_is_gone")
class CountsNoPins(FileAdapter):
    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        super().unpin([*keys] * 5)


@killed_by("what_vanished_is_missing_and_can_be_stored_again")
class BelievesItsIndex(FileAdapter):
    def contains(self, key: ObjectKey) -> bool:
        return self.name(key) in self.sizes


@killed_by("two_that_are_open_at_once_see_what_the_other_stored")
class SeesOnlyItsOwn(FileAdapter):
    capabilities = CAPABILITIES | Capability.SHARED

    def contains(self, key: ObjectKey) -> bool:
        return self.name(key) in self.sizes


@killed_by("a_damaged_object_can_be_stored_anew")
class KeepsWhatIsDamaged(FileAdapter):
    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return False
