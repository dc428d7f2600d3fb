"""L1's memory: one POSIX shared-memory segment that engines map, or anonymous memory where that cannot be had.

The segment is a file of mode 0600 on the shared-memory file system, sparse at first; pages are allocated, not only
promised, before anything is placed on them (`back`), so that a full file system is an error here and not a SIGBUS in an
engine.  It is locked from before it has a name until the server is gone, which is how the next server tells a segment of
a dead one from a live one without process ids.
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
from lmcache_core.contracts.buffers import MemoryRegion
from lmcache_core.l1.huge_pages import HUGE_BYTES, anonymous_obstacle, shared_obstacle

logger = logging.getLogger(__name__)

SHM_ROOT = Path("/dev/shm")
SEGMENT_PREFIX = "lmcache-l1-"
FULL_SECONDS = 1.0
"""How long memory that could not be had is not asked for again: a refusal takes as long as an allocation."""
_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for these before Python 3.12 and 3.13
_MAP_HUGETLB = 0x40000


class Arena:
    """`size_bytes` of memory at one address, owned by whoever made it; close it last.

    `back` and `grow` may be called by any threads at once; they take long, and hold no lock meanwhile."""

    def __init__(
        self,
        mapping: mmap.mmap,
        descriptor: int | None,
        path: Path | None,
        huge: bool = False,
        direct_io: bool = False,
    ) -> None:
        self._mapping = mapping
        self._descriptor = descriptor
        self._path = path
        self._huge = huge
        self._lock = threading.Lock()
        self._backed = Extents()
        self._asked_end = 0
        self._allocating = 0
        self._closed = False
        self._full_until = 0.0
        self._on_asked: Callable[[], None] = lambda: None
        view = memoryview(mapping)
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        del anchor
        self.size_bytes = len(view)
        self.segment = path.name if path else None
        self.region = MemoryRegion(address, len(view), view, descriptor, self.segment, direct_io)

    @property
    def kind(self) -> str:
        """What L1 lies in: shared_memory, anonymous_memory, or file."""
        return "shared_memory" if self.segment else "anonymous_memory"

    @property
    def file(self) -> Path | None:
        """Where L1 lies on a disk; None in memory."""
        return None

    @property
    def backed_bytes(self) -> int:
        """What has been allocated, or was asked for and is allocated as it is written (anonymous memory)."""
        return self._backed.total

    @property
    def asked_end(self) -> int:
        """Everything that was ever asked for lies before this offset."""
        return self._asked_end

    def call_when_asked(self, function: Callable[[], None]) -> None:
        """`function` is called after every `back`, on its thread."""
        self._on_asked = function

    def back(self, offset: int, length: int) -> bool:
        """Make sure that this stretch has pages.  Returns at once where it has; otherwise they are allocated now, but
        those of anonymous memory when they are written.  False when they cannot be had; those that could be stay."""
        wanted = Extent(offset, length)
        with self._lock:
            gaps = self._backed.missing(wanted)
            self._asked_end = max(self._asked_end, wanted.end)
        there = all(self._allocate(gap, only_promise=True) for gap in gaps)
        self._on_asked()
        return there

    def grow(self, end: int, step_bytes: int) -> int | None:
        """Allocate the first `step_bytes` at most that have no pages before offset `end`.  Returns how many they were,
        0 when all have; None when they cannot be had."""
        with self._lock:
            gap = next(iter(self._backed.missing(Extent(0, min(end, self.size_bytes)))), None)
        if gap is None:
            return 0
        # To a boundary of huge pages, so that none is torn.
        gap = Extent(gap.offset, min(gap.length, step_bytes - gap.offset % HUGE_BYTES))
        return gap.length if self._allocate(gap) else None

    def fetch(self, offset: int, length: int) -> None:
        """Before this thread reads or writes a stretch itself: wait for a disk here, without the interpreter's lock, where
        L1 is a file.  Raises OSError when the disk fails."""

    def close(self) -> None:
        """Remove the segment's name and unmap it, or let the last thread that still allocates pages do that when it is
        done.  Engines that still map it keep their mapping."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        with self._lock:
            self._closed = True
            idle = not self._allocating
        if idle:
            self._unmap()

    def _unmap(self) -> None:
        self.region.view.release()
        with contextlib.suppress(BufferError):  # an adapter that did not let go keeps the mapping, not the name
            self._mapping.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _allocate(self, gap: Extent, only_promise: bool = False) -> bool:
        with self._lock:
            if self._closed or time.monotonic() < self._full_until:
                return False
            self._allocating += 1
        try:
            return self._allocate_now(gap, only_promise)
        finally:
            self._end_allocation()

    def _end_allocation(self) -> None:
        with self._lock:
            self._allocating -= 1
            last = self._closed and not self._allocating
        if last:
            self._unmap()

    def _allocate_now(self, gap: Extent, only_promise: bool) -> bool:
        shared = self._descriptor is not None
        try:
            if (shared and self._huge) or not (shared or only_promise):
                # Huge pages of shared memory are only had by touching it where it is advised.
                with contextlib.suppress(OSError) if shared else contextlib.nullcontext():
                    populate(self.region.address + gap.offset, gap.length)
            if self._descriptor is not None:
                os.posix_fallocate(self._descriptor, gap.offset, gap.length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFAULT):
                raise
            self._full_until = time.monotonic() + FULL_SECONDS
            return False
        with self._lock:
            self._backed.add(gap)
        return True


def anonymous_arena(size_bytes: int, huge: bool = False) -> Arena:
    """Private memory: engines get their chunks in-band, over the socket.  `huge`: of reserved huge pages, else of
    transparent ones; where neither can be had, a warning says how.  Raises ResourceError when there is no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    whole_pages = size_bytes // HUGE_BYTES * HUGE_BYTES
    if huge and whole_pages:
        # Reserved pages are taken from the pool here, or not at all: touching them cannot fail later.
        with contextlib.suppress(OSError):
            return Arena(mmap.mmap(-1, whole_pages, flags=flags | _MAP_HUGETLB), None, None, huge=True)
    try:
        arena = Arena(mmap.mmap(-1, size_bytes, flags=flags | _MAP_NORESERVE), None, None, huge)
    except OSError as error:
        raise ResourceError(
            f"L1 of {size_bytes / 2**30:.1f} GiB cannot be had: {error.strerror}; lower l1_size_gb"
        ) from None
    if huge:
        _advise(arena, anonymous_obstacle())
    return arena


def shared_memory_shortage(size_bytes: int) -> str | None:
    """Why an arena of this size cannot be shared memory here, and what to do about it; None when it can."""
    try:
        room = os.statvfs(SHM_ROOT)
    except OSError as error:
        return f"{SHM_ROOT} cannot be used: {error.strerror}"
    free_bytes = room.f_bavail * room.f_frsize
    if size_bytes <= free_bytes:
        return None
    return (
        f"L1 of {size_bytes / 2**30:.1f} GiB does not fit into {SHM_ROOT}, which has {free_bytes / 2**30:.1f} GiB free; "
        "lower l1_size_gb or enlarge it (docker: --shm-size, Kubernetes: an emptyDir of medium Memory)"
    )


def shared_arena(size_bytes: int, name: str, huge: bool = False) -> Arena:
    """A new segment called `lmcache-l1-<name>`.  `huge`: of transparent huge pages; where they cannot be had, a warning
    says how.  Raises ResourceError when a live server has that name."""
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    descriptor = os.open(SHM_ROOT, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, size_bytes)
        mapping = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED)
        # Named only now: nobody ever sees it unlocked.  The directory is not looked at for an absolute path, but makes
        # Python call linkat, which follows the link.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        os.close(descriptor)
        raise ResourceError(
            f"shm_name: segment '{path}' is there already and its server is alive; choose another --shm-name"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    arena = Arena(mapping, descriptor, path, huge)
    if huge:
        _advise(arena, shared_obstacle(SHM_ROOT))
    return arena


def remove_stale_segments() -> int:
    """Unlink segments whose servers are gone.  Returns how many.  Other users' and live ones are left alone."""
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


def _advise(arena: Arena, obstacle: str | None) -> None:
    """Ask for transparent huge pages, or say why there are none: pages of the usual size serve as well, more slowly."""
    if obstacle is None:
        try:
            advise_huge_pages(arena.region.address, arena.size_bytes)
        except OSError as error:
            obstacle = f"this kernel has none: {error.strerror}"
    if obstacle is not None:
        logger.warning("l1 has no huge pages, as --l1-use-hugepages asks for reason=%s", obstacle)
