"""Bytes that are not what was stored."""

from __future__ import annotations

import os
import time

from lmcache_core import BorrowedBuffer, Capability, ObjectKey, Outcome
from plugins.devkit.tests.mutants.file_adapter import CAPABILITIES, FileAdapter, killed_by


@killed_by("what_was_stored_is_found_and_comes_back_byte_for_byte")
class TornWrite(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        self.path(key).write_bytes(bytes(buffer.view[: buffer.length // 2]).ljust(buffer.length, b"\0"))


@killed_by("what_was_stored_is_found_and_comes_back_byte_for_byte")
class HalfAFill(FileAdapter):
    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        os.preadv(fd, [buffer.view[: buffer.length // 2]], 0)
        return Outcome.DONE


@killed_by("a_payload_of_any_size_comes_back")
class OneByteShort(FileAdapter):
    """Of sizes that are not a multiple of a sector, the last byte is lost."""

    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        os.preadv(fd, [buffer.view[: buffer.length // 512 * 512 or buffer.length]], 0)
        return Outcome.DONE


@killed_by("every_tensor_of_an_object_comes_back")
class LastTensorLost(FileAdapter):
    """Takes an object of several tensors for one of a page."""

    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        os.preadv(fd, [buffer.view[:8192]], 0)
        return Outcome.DONE


@killed_by("a_buffer_of_another_length_is_never_filled_with_success")
class AnyLengthIsRight(FileAdapter):
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        try:
            data = self.path(key).read_bytes()[: buffer.length]
        except FileNotFoundError:
            return Outcome.MISSING
        buffer.view[: len(data)] = data
        return Outcome.DONE


@killed_by("what_the_adapter_verifies_it_refuses_by_itself")
class SaysThatItVerifies(FileAdapter):
    capabilities = CAPABILITIES | Capability.VERIFIES


@killed_by("what_is_foreign_is_neither_served_nor_replaced_nor_deleted")
class ForeignIsRemoved(FileAdapter):
    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return self.delete(key) in (Outcome.DONE, Outcome.MISSING)


@killed_by("an_object_that_is_deleted_while_it_is_loaded_is_whole_or_missing")
class TornByADelete(FileAdapter):
    """Reads in two pieces, and opens the file for each."""

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        half = buffer.length // 2
        try:
            with self.path(key).open("rb") as file:
                file.readinto(buffer.view[:half])
            time.sleep(0.001)
            with self.path(key).open("rb") as file:
                file.seek(half)
                file.readinto(buffer.view[half:])
        except FileNotFoundError:
            if bytes(buffer.view[:8]) != b"LMKVOBJ1":
                return Outcome.MISSING
        return Outcome.DONE


@killed_by("what_is_stored_is_the_object_and_nothing_else")
class AddsATrailer(FileAdapter):
    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        self.path(key).write_bytes(bytes(buffer.view) + b"trailer")

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        try:
            data = self.path(key).read_bytes().removesuffix(b"trailer")
        except FileNotFoundError:
            return Outcome.MISSING
        if len(data) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = data
        return Outcome.DONE
