"""Adapters that end badly, or leave something."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

from lmcache_core import AdapterContext, BorrowedBuffer, ObjectKey
from plugins.devkit.tests.mutants.file_adapter import FileAdapter, FileSettings, killed_by
from plugins.devkit.tests.mutants.planted import LATER_SECONDS


@killed_by("what_was_done_survives_a_kill_and_nothing_is_torn")
class DoneBeforeItIsThere(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        data = bytes(buffer.view)
        threading.Timer(LATER_SECONDS, self.path(key).write_bytes, (data,)).start()


@killed_by("what_was_done_survives_a_kill_and_nothing_is_torn")
class HasItsNameBeforeItIsComplete(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        with self.path(key).open("wb") as file:
            file.write(buffer.view[: buffer.length // 2])
            file.flush()
            time.sleep(0.002)
            file.write(buffer.view[buffer.length // 2 :])


@killed_by("what_was_stored_is_found_after_closing_and_opening_again")
class StartsEmpty(FileAdapter):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        super().__init__(settings, context)
        for file in self.root.glob("*.kv"):
            file.unlink()


@killed_by("closing_again_does_nothing")
class CloseHangs(FileAdapter):
    def close(self, deadline_seconds: float) -> None:
        super().close(deadline_seconds)
        threading.Event().wait(60)


@killed_by("after_close_everything_fails_and_is_still_answered")
class NeverCloses(FileAdapter):
    def close(self, deadline_seconds: float) -> None:
        pass


@killed_by("close_finishes_what_was_submitted")
class CloseHasNoTime(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        time.sleep(0.005)
        super().write(key, buffer)

    def close(self, deadline_seconds: float) -> None:
        super().close(0)


@killed_by("opening_and_closing_leaves_no_thread_descriptor_or_memory")
class LeaksADescriptor(FileAdapter):
    def stopped(self) -> None:
        os.open(self.root, os.O_RDONLY)


@killed_by("opening_and_closing_leaves_no_thread_descriptor_or_memory")
class LeaksAThread(FileAdapter):
    def stopped(self) -> None:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


@killed_by("opening_and_closing_leaves_no_thread_descriptor_or_memory")
class LeaksMemory(FileAdapter):
    kept: ClassVar[list[Any]] = []

    def stopped(self) -> None:
        self.kept.append(b"x" * 2**20)
