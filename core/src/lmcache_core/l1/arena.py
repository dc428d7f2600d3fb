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
from pathlib import Path

from lmcache_core.contracts.buffers import MemoryRegion
from lmcache_core.model.errors import ResourceError

logger = logging.getLogger(__name__)

SHM_ROOT = Path("/dev/shm")
SEGMENT_PREFIX = "lmcache-l1-"
_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for it before Python 3.12


class Arena:
    """`size_bytes` of memory at one address, owned by whoever made it; close it last."""

    def __init__(self, mapping: mmap.mmap, descriptor: int | None, path: Path | None) -> None:
        self._mapping = mapping
        self._descriptor = descriptor
        self._path = path
        view = memoryview(mapping)
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        del anchor
        self.size_bytes = len(view)
        self.segment = path.name if path else None
        self.region = MemoryRegion(address, len(view), view, descriptor, self.segment)

    def back(self, offset: int, length: int) -> bool:
        """Allocate the pages of this stretch.  False when the memory cannot be had; nothing changed then."""
        if self._descriptor is None:
            return True
        try:
            os.posix_fallocate(self._descriptor, offset, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            return False
        return True

    def close(self) -> None:
        """Remove the segment's name and unmap it.  Engines that still map it keep their mapping."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self.region.view.release()
        with contextlib.suppress(BufferError):  # an adapter that did not let go keeps the mapping, not the name
            self._mapping.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def anonymous_arena(size_bytes: int) -> Arena:
    """Private memory: engines get their chunks in-band, over the socket.  Raises ResourceError when there is none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        return Arena(mmap.mmap(-1, size_bytes, flags=flags), None, None)
    except OSError as error:
        raise ResourceError(
            f"L1 of {size_bytes / 2**30:.1f} GiB cannot be had: {error.strerror}; lower l1_size_gb"
        ) from None


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


def shared_arena(size_bytes: int, name: str) -> Arena:
    """A new segment called `lmcache-l1-<name>`.  Raises ResourceError when a live server has that name."""
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
    return Arena(mapping, descriptor, path)


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
