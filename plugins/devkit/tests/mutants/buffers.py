"""Borrowed memory that is touched where or when it is not borrowed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lmcache_core import BorrowedBuffer, JobId, LoadItem, ObjectKey, Outcome
from plugins.devkit.tests.mutants.file_adapter import FileAdapter, killed_by
from plugins.devkit.tests.mutants.planted import LATER_SECONDS


@killed_by("a_store_writes_nowhere_and_a_load_only_into_its_buffer")
class WritesIntoTheBufferOfAStore(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        super().write(key, buffer)
        buffer.view[15:23] = bytes(8)


@killed_by("a_store_writes_nowhere_and_a_load_only_into_its_buffer")
class WritesBehindTheBuffer(FileAdapter):
    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        end = buffer.offset + buffer.length
        buffer.region.view[end : end + 8] = bytes(8)
        return super().fill(fd, buffer)


@killed_by("a_buffer_that_was_released_is_not_touched_any_more")
class TouchesAfterTheRelease(FileAdapter):
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        outcome = super().load(key, buffer)
        threading.Timer(LATER_SECONDS, buffer.view.__setitem__, (100, 0)).start()
        return outcome


@killed_by("a_store_that_has_released_its_buffer_does_not_read_it_any_more")
class KeepsTheBufferAfterDone(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        super().write(key, buffer)
        threading.Timer(LATER_SECONDS, super().write, (key, buffer)).start()


@killed_by("submitting_to_a_backend_that_does_not_answer_returns_at_once")
class SubmitWaits(FileAdapter):
    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        self.go_on.wait(3 * LATER_SECONDS)
        return super().submit_load(batch)
