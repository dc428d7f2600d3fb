"""L1 memories: a right one and mutants."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from lmcache_client.errors import ResourceError
from lmcache_core import L1Memory, L1MemoryContext, MemoryRegion, Offer
from lmcache_devkit.l1_memory_suite import L1MemorySuite
from plugins.devkit.tests.mutants.planted import Planted

FOLDER = Path(tempfile.gettempdir())


class Right(L1Memory):
    """A file that is locked, and empty at first; each mutant below is wrong in one thing."""

    extra_bytes: ClassVar[int] = 0
    exclusive: ClassVar[bool] = True

    def __init__(self, context: L1MemoryContext) -> None:
        self._path = FOLDER / f"lmcache-mutant-{os.getpid()}"
        self.descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if self.exclusive:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.descriptor)
            raise ResourceError("the file is in use; name another one") from None
        self.clear(self.descriptor)
        os.posix_fallocate(self.descriptor, 0, context.size_bytes + self.extra_bytes)
        self.mapping = mmap.mmap(self.descriptor, context.size_bytes + self.extra_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self._region = MemoryRegion(address, len(self.mapping), memoryview(self.mapping), self.descriptor)

    def clear(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)

    @property
    def region(self) -> MemoryRegion:
        return self._region

    @property
    def kind(self) -> str:
        return "mutant"

    @property
    def path(self) -> Path | None:
        return self._path

    def unlink(self) -> None:
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self.unlink()
        self._region.view.release()
        with suppress(BufferError):
            self.mapping.close()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


PLANTED = Planted("l1_memories.py", Right)


@PLANTED.killed_by("it_opens_as_a_memory_of_the_size_that_was_asked_for", "bytes and a view of")
class RoundsUp(Right):
    extra_bytes = 4096


@PLANTED.killed_by("it_opens_as_a_memory_of_the_size_that_was_asked_for", "another object each time")
class MakesARegionEachTime(Right):
    @property
    def region(self) -> MemoryRegion:
        old = self._region
        return MemoryRegion(old.address, old.length, old.view, old.descriptor)


@PLANTED.killed_by("it_opens_as_a_memory_of_the_size_that_was_asked_for", "address and view are not the same memory")
class NamesOtherMemory(Right):
    def __init__(self, context: L1MemoryContext) -> None:
        super().__init__(context)
        self.other = mmap.mmap(-1, context.size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.other))
        self._region = MemoryRegion(address, len(self.mapping), self._region.view, self.descriptor)


@PLANTED.killed_by("its_kind_is_a_word", "is not a word such as file")
class HasASentenceForItsKind(Right):
    @property
    def kind(self) -> str:
        return "a very fast disk"


@PLANTED.killed_by("a_name_is_that_of_a_segment_that_engines_can_map")
class NamesASegmentThatIsNotThere(Right):
    def __init__(self, context: L1MemoryContext) -> None:
        super().__init__(context)
        old = self._region
        self._region = MemoryRegion(old.address, old.length, old.view, old.descriptor, name="lmcache-no-such-segment")


@PLANTED.killed_by("every_byte_keeps_its_value", "have changed")
class ForgetsWhatItFetches(Right):
    def fetch(self, offset: int, length: int) -> None:
        if offset:
            self._region.view[offset - 1 : offset] = b"\0"


@PLANTED.killed_by("a_server_can_use_all_of_it")
class RefusesTheSecondHalf(Right):
    @property
    def is_lazy(self) -> bool:
        return True

    def allocate(self, offset: int, length: int, ahead: bool) -> None:
        if offset + length > self._region.length // 2:
            raise OSError(28, "no space")


@PLANTED.killed_by("two_servers_never_share_one", "a second server writes to the same memory")
class TakesNoLock(Right):
    exclusive = False

    def clear(self, descriptor: int) -> None:
        if not os.fstat(descriptor).st_size:
            super().clear(descriptor)


@PLANTED.killed_by("nothing_of_a_former_server_is_left", "it holds bytes of a former server")
class KeepsItsFile(Right):
    def clear(self, descriptor: int) -> None:
        return

    def unlink(self) -> None:
        return


@PLANTED.killed_by("close_gives_everything_back", "open files are left behind")
class KeepsItsDescriptor(Right):
    def close(self) -> None:
        self.unlink()
        self._region.view.release()


@PLANTED.killed_by("close_gives_everything_back", "threads are left behind")
class KeepsItsThread(Right):
    def __init__(self, context: L1MemoryContext) -> None:
        super().__init__(context)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@PLANTED.killed_by("close_gives_everything_back")
class ClosesTwice(Right):
    def close(self) -> None:
        self.unlink()
        self._region.view.release()
        self.mapping.close()
        assert self.descriptor is not None
        os.close(self.descriptor)
        self.descriptor = None


def opener(kind: type[Right]) -> Callable[[None, L1MemoryContext], L1Memory]:
    return lambda settings, context: kind(context)


def offer_of(kind: type[Right]) -> Offer:
    return Offer(kind.__name__, "planted", f"{__name__}:open_{kind.__name__}")


globals().update({f"open_{kind.__name__}": opener(kind) for kind in (Right, *PLANTED.bugs)})

globals().update(PLANTED.suites(L1MemorySuite, __name__, offer_of))
