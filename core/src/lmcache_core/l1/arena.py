"""L1's memory: one POSIX shared-memory segment that engines map, or anonymous memory where there is none.

The segment is a file of mode 0600 on the shared-memory file system, sparse at first; pages are allocated, not only
promised, before anything is placed on them (`back`), so that a full file system is an error here and not a SIGBUS in an
engine.  It is locked from before it has a name until the server is gone, which is how the next server tells a segment of
a dead one from a live one without process ids.

A slab of 64 MiB takes some 15 ms to allocate and clear, which a store must not pay for.  One thread does it ahead of need
(`Preallocation`): first what the server was configured to have at the start, then a stretch ahead of what is in use.
Stores allocate for themselves only where they are faster than this thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lmcache_client.errors import ResourceError
from lmcache_client.extents import Extent, Extents
from lmcache_client.memory_calls import advise_huge_pages, populate
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.l1_memory import L1Memory, MemoryRegion
from lmcache_core.l1.pages import HUGE_BYTES, anonymous_huge_pages_refusal, shared_huge_pages_refusal

logger = logging.getLogger(__name__)

SHM_ROOT = Path("/dev/shm")
SEGMENT_PREFIX = "lmcache-l1-"
FULL_SECONDS = 1.0
"""Until memory that was refused is requested again: a refusal takes as long as an allocation."""
STEP_BYTES = 16 << 20
"""Allocated at a time: the longest that a store waits for this thread, since the kernel admits one at a time."""
AHEAD_BYTES = 256 << 20
_AHEAD_SHARE = 8
"""Of a small arena, at most 1/8 is allocated ahead."""
RETRY_SECONDS = 10.0
"""Until memory that was refused is requested again."""
_PROGRESS_PERCENT, _PROGRESS_SECONDS = 10, 1.0
"""A log line after each step of the initial allocation, and not more often than this."""
_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for these before Python 3.12 and 3.13
_MAP_HUGETLB = 0x40000


class MappedMemory(L1Memory):
    """Core's own memory: a shared segment, which has a descriptor and a path, or anonymous memory."""

    def __init__(
        self, mapping: mmap.mmap, descriptor: int | None = None, path: Path | None = None, huge: bool = False
    ) -> None:
        """`huge`: huge pages are wanted, and allocated by touching them."""
        self._mapping = mapping
        self._descriptor = descriptor
        self._path = path
        self._huge = huge
        view = memoryview(mapping)
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        del anchor
        self._region = MemoryRegion(address, len(view), view, descriptor, path.name if path else None)

    @property
    def region(self) -> MemoryRegion:
        return self._region

    @property
    def kind(self) -> str:
        return "anonymous_memory" if self._path is None else "shared_memory"

    @property
    def is_lazy(self) -> bool:
        return True

    def allocate(self, offset: int, length: int, ahead: bool) -> None:
        shared = self._descriptor is not None
        if (shared and self._huge) or (ahead and not shared):
            # Huge pages of shared memory are only allocated by touching it where it is advised.
            with contextlib.suppress(OSError) if shared else contextlib.nullcontext():
                populate(self._region.address + offset, length)
        if self._descriptor is not None:
            os.posix_fallocate(self._descriptor, offset, length)

    def unlink(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self._region.view.release()
        # An adapter that did not release its buffers keeps the mapping, not the name.
        with contextlib.suppress(BufferError):
            self._mapping.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Arena:
    """L1's memory, and which of its pages are allocated.  Its opener owns it, and closes it last.

    `back` and `grow` may be called by several threads at once; they take long, and hold no lock in the meantime."""

    def __init__(self, memory: L1Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._backed = Extents()
        self.requested_end = 0
        """All requests so far end before this offset."""
        self._allocating = 0
        self._closed = self._is_unnamed = False
        self._full_until = 0.0
        self._on_requested: Callable[[], None] = lambda: None
        self.region = memory.region
        self.size_bytes = self.region.length
        self.segment = self.region.name
        """Name of the shared-memory segment, which engines map; None where there is none."""
        self.kind = memory.kind
        """Kind of memory: shared_memory, anonymous_memory, or that of a plugin, such as file."""
        self.file = memory.path
        """Path of L1 on a disk; None in memory."""
        self.fetch = memory.fetch
        """As `L1Memory.fetch`."""
        if not memory.is_lazy:
            self._backed.add(Extent(0, self.size_bytes))

    @property
    def backed_bytes(self) -> int:
        """Bytes that are allocated, or requested and allocated on the first write (anonymous memory)."""
        return self._backed.total

    def call_when_requested(self, function: Callable[[], None]) -> None:
        """`function` is called after every `back`, on its thread."""
        self._on_requested = function

    def back(self, offset: int, length: int) -> bool:
        """Allocate the pages of this stretch that are missing; anonymous memory on the first write.  False when
        memory is refused; pages that were allocated stay."""
        wanted = Extent(offset, length)
        with self._lock:
            gaps = self._backed.missing(wanted)
            self.requested_end = max(self.requested_end, wanted.end)
        there = all(self._allocate(gap, ahead=False) for gap in gaps)
        self._on_requested()
        return there

    def grow(self, end: int, step_bytes: int) -> int | None:
        """Allocate the first bytes without pages before offset `end`, at most `step_bytes`.  Returns their number, 0 when all
        have pages; None when memory is refused."""
        with self._lock:
            gap = next(iter(self._backed.missing(Extent(0, min(end, self.size_bytes)))), None)
        if gap is None:
            return 0
        # To a boundary of huge pages, so that none is torn.
        gap = Extent(gap.offset, min(gap.length, step_bytes - gap.offset % HUGE_BYTES))
        return gap.length if self._allocate(gap) else None

    def unname(self) -> None:
        """Who has mapped the memory goes on, no other process maps it, and nothing stays when this one is killed."""
        if not self._is_unnamed:
            self._is_unnamed = True
            self._memory.unlink()

    def close(self) -> None:
        """Remove the memory's name and release it, or let the last thread that still allocates pages release it when it is
        done.  Engines that still map a segment keep their mapping."""
        self.unname()
        with self._lock:
            self._closed = True
            idle = not self._allocating
        if idle:
            self._memory.close()

    def _allocate(self, gap: Extent, ahead: bool = True) -> bool:
        with self._lock:
            if self._closed or time.monotonic() < self._full_until:
                return False
            self._allocating += 1
        try:
            return self._allocate_now(gap, ahead)
        finally:
            self._end_allocation()

    def _end_allocation(self) -> None:
        with self._lock:
            self._allocating -= 1
            last = self._closed and not self._allocating
        if last:
            self._memory.close()

    def _allocate_now(self, gap: Extent, ahead: bool) -> bool:
        try:
            self._memory.allocate(gap.offset, gap.length, ahead)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFAULT):
                raise
            self._full_until = time.monotonic() + FULL_SECONDS
            return False
        with self._lock:
            self._backed.add(gap)
        return True


class Preallocation:
    """`run` is the thread's body; `stop` ends it from any thread.  It stops before the arena is closed."""

    def __init__(self, arena: Arena, start_bytes: int, clock: Clock) -> None:
        self._arena = arena
        self._start_bytes = min(start_bytes, arena.size_bytes)
        self._ahead_bytes = min(AHEAD_BYTES, arena.size_bytes // _AHEAD_SHARE)
        self._clock = clock
        self._requested = threading.Event()
        self._stop = False
        self.is_full = False
        """The last request for memory was refused."""
        arena.call_when_requested(self._requested.set)

    def run(self) -> None:
        self._fill_start()
        while not self._stop:
            self._requested.wait(RETRY_SECONDS if self.is_full else None)
            self._requested.clear()
            self._fill(max(self._start_bytes, self._arena.requested_end + self._ahead_bytes))

    def stop(self) -> None:
        self._stop = True
        self._requested.set()

    def _fill_start(self) -> None:
        """The initial allocation, with its progress in the log."""
        started = shown = self._clock.monotonic()
        percent = 0
        while not self._stop and self._grow(self._start_bytes):
            now, done = self._clock.monotonic(), min(self._arena.backed_bytes, self._start_bytes)
            reached = done * 100 // self._start_bytes
            if reached < 100 and reached >= percent + _PROGRESS_PERCENT and now >= shown + _PROGRESS_SECONDS:
                percent, shown = reached, now
                self._show("l1 is being allocated", done, now - started)
        if self._start_bytes and not self._stop and not self.is_full:
            self._show("l1 is allocated", self._start_bytes, self._clock.monotonic() - started)
        self._requested.set()

    def _fill(self, end: int) -> None:
        while not self._stop and self._grow(end):
            pass

    def _grow(self, end: int) -> bool:
        """One step.  False when all is allocated, or memory was refused."""
        grown = self._arena.grow(end, STEP_BYTES)
        self.is_full = grown is None
        return bool(grown)

    def _show(self, what: str, done_bytes: int, seconds: float) -> None:
        gib = done_bytes / 2**30
        logger.info(
            "%s percent=%d gib=%.2f gib_per_second=%.1f",
            what,
            done_bytes * 100 // self._start_bytes,
            gib,
            gib / max(seconds, 1e-6),
        )


def anonymous_arena(size_bytes: int, huge: bool = False) -> Arena:
    """Private memory: engines get their chunks in-band, over the socket.  `huge`: of reserved huge pages, else of
    transparent ones; where there are neither, a warning gives the remedy.  Raises ResourceError when there is no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    whole_pages = size_bytes // HUGE_BYTES * HUGE_BYTES
    if huge and whole_pages:
        # Reserved pages are taken from the pool here, or not at all: touching them cannot fail later.
        with contextlib.suppress(OSError):
            return Arena(MappedMemory(mmap.mmap(-1, whole_pages, flags=flags | _MAP_HUGETLB), huge=True))
    try:
        arena = Arena(MappedMemory(mmap.mmap(-1, size_bytes, flags=flags | _MAP_NORESERVE), huge=huge))
    except OSError as error:
        raise ResourceError(
            f"L1 of {size_bytes / 2**30:.1f} GiB cannot be allocated: {error.strerror}; lower l1_size_gb"
        ) from None
    if huge:
        _advise(arena, anonymous_huge_pages_refusal())
    return arena


def shared_memory_shortage(size_bytes: int) -> str | None:
    """Why an arena of this size cannot be shared memory here, with the remedy; None when it can."""
    try:
        found = os.statvfs(SHM_ROOT)
    except OSError as error:
        return f"{SHM_ROOT} cannot be used: {error.strerror}"
    free_bytes = found.f_bavail * found.f_frsize
    if size_bytes <= free_bytes:
        return None
    return (
        f"L1 of {size_bytes / 2**30:.1f} GiB does not fit into {SHM_ROOT}, which has {free_bytes / 2**30:.1f} GiB free; "
        "lower l1_size_gb or enlarge it (docker: --shm-size, Kubernetes: an emptyDir of medium Memory)"
    )


def shared_arena(size_bytes: int, name: str, huge: bool = False) -> Arena:
    """A new segment called `lmcache-l1-<name>`.  `huge`: of transparent huge pages; where there are none, a warning
    gives the remedy.  Raises ResourceError when a live server has that name."""
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    descriptor = os.open(SHM_ROOT, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, size_bytes)
        mapping = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED)
        # Named only now: no other process ever sees it unlocked.  The directory is ignored for an absolute path, but
        # makes Python call linkat, which follows the link.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        os.close(descriptor)
        raise ResourceError(
            f"shm_name: segment '{path}' is there already and its server is alive; choose another --shm-name"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    arena = Arena(MappedMemory(mapping, descriptor, path, huge))
    if huge:
        _advise(arena, shared_huge_pages_refusal(SHM_ROOT))
    return arena


def remove_stale_segments() -> int:
    """Unlink segments whose servers are gone.  Returns their number.  Other users' and live ones are left alone."""
    removed = 0
    for path in SHM_ROOT.glob(f"{SEGMENT_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            removed += 1
            logger.info("l1 removed the shared memory of a dead server segment=%s", path.name)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


def _advise(arena: Arena, refusal: str | None) -> None:
    """Request transparent huge pages, or warn why there are none: pages of the usual size serve as well, more slowly."""
    if refusal is None:
        try:
            advise_huge_pages(arena.region.address, arena.size_bytes)
        except OSError as error:
            refusal = f"this kernel has none: {error.strerror}"
    if refusal is not None:
        logger.warning("l1 has no huge pages, as --l1-use-hugepages asks for reason=%s", refusal)
