"""Where a lane without an adapter puts objects: an unnamed file beside an adapter's own, or other memory."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, c_char
from pathlib import Path
from typing import Final

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import populate
from lmcache_core.model.keys import ObjectKey
from lmcache_tools.bench.io_engine import IoEngine, IoLibrary, Operation
from lmcache_tools.bench.lane import Step, Verb
from lmcache_tools.bench.memory import require_memory
from lmcache_tools.bench.plan import slot_bytes

DIRECT_ALIGN: Final = 4096


class Medium(ABC):
    """Objects one behind the other, where an object lies being decided when it is first stored.  One thread."""

    def __init__(self, library: IoLibrary) -> None:
        self._library: Final = library
        self._places: dict[ObjectKey, int] = {}
        self._end = 0

    def operation(self, step: Step) -> Operation:
        """What moves this object.  Raises KeyError for a load of what was never stored."""
        if step.verb is Verb.STORE and step.key not in self._places:
            self._places[step.key] = self._end
            self._end += slot_bytes(step.buffer.length)
        return self._operation(step, self._places[step.key])

    def clear(self) -> None:
        """Forget what was stored: the next objects lie where these did."""
        self._places.clear()
        self._end = 0

    @abstractmethod
    def register(self, engine: IoEngine) -> None:
        """Let the engine know what it will be used on."""

    @abstractmethod
    def _operation(self, step: Step, place: int) -> Operation: ...


class FileMedium(Medium):
    """A file without a name, which is gone with this process, however that ends."""

    def __init__(self, library: IoLibrary, descriptor: int, is_direct: bool, is_fresh: bool) -> None:
        """`is_fresh`: give all blocks back with each `clear`, for adapters that write new files; otherwise blocks are
        written over, as in slots of a device."""
        super().__init__(library)
        self._descriptor = descriptor
        self._align = DIRECT_ALIGN if is_direct else 0
        self._is_fresh = is_fresh

    def clear(self) -> None:
        super().clear()
        if self._is_fresh:
            os.ftruncate(self._descriptor, 0)

    def register(self, engine: IoEngine) -> None:
        engine.register_file(self._descriptor)

    def _operation(self, step: Step, place: int) -> Operation:
        buffer, library = step.buffer, self._library
        moved = (step.token, self._descriptor, place, buffer.address, buffer.length, self._align)
        return (library.write, *moved, 0, 0) if step.verb is Verb.STORE else (library.read, *moved, -1)


class MemoryMedium(Medium):
    """Other memory of this process."""

    def __init__(self, library: IoLibrary, address: int) -> None:
        super().__init__(library)
        self._address = address

    def register(self, engine: IoEngine) -> None:
        """Copies need nothing of the kind."""

    def _operation(self, step: Step, place: int) -> Operation:
        there, here = self._address + place, step.buffer.address
        ends = (here, there) if step.verb is Verb.STORE else (there, here)
        return (self._library.copy, step.token, *ends, step.buffer.length, 0, -1)


@contextmanager
def memory_medium(library: IoLibrary, size_bytes: int) -> Iterator[MemoryMedium]:
    """Raises ResourceError when there is not that much memory."""
    require_memory(size_bytes)
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = addressof(c_char.from_buffer(memory))
        populate(address, size_bytes)
    except OSError as error:
        raise ResourceError(f"{size_bytes} bytes to compare with could not be allocated: {error.strerror}") from None
    with memory:
        yield MemoryMedium(library, address)


@contextmanager
def file_medium(library: IoLibrary, folder: Path, is_direct: bool, is_fresh: bool) -> Iterator[FileMedium]:
    """Raises ResourceError when no file can be made there."""
    try:
        descriptor = _unnamed(folder, os.O_DIRECT if is_direct else 0)
    except OSError as error:
        raise ResourceError(f"no file can be made in '{folder}' to compare with: {error.strerror}") from None
    try:
        yield FileMedium(library, descriptor, is_direct, is_fresh)
    finally:
        os.close(descriptor)


def _unnamed(folder: Path, flags: int) -> int:
    """Raises OSError."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    # A file system that makes none without a name: this one has a name for a moment.
    descriptor, name = tempfile.mkstemp(prefix=".lmcache-bench-", dir=folder)
    try:
        return os.open(name, os.O_RDWR | os.O_CLOEXEC | flags)
    finally:
        os.close(descriptor)
        os.unlink(name)


def takes_direct(folder: Path) -> bool:
    """Can files there be opened past the page cache?  False also where none can be made at all."""
    try:
        os.close(_unnamed(folder, os.O_DIRECT))
    except OSError:
        return False
    return True
