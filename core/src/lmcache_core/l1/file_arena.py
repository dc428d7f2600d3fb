"""L1's memory as a file on a fast disk, mapped: larger than memory, and as fast as the disk.

The file holds the arena, and behind it one page that says whose it is.  It is allocated whole before anything is placed
on it, so that a full disk is an error at the start and not a SIGBUS later.  What a former run left in it is never read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import mmap
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmcache_client.errors import ResourceError
from lmcache_client.extents import Extent
from lmcache_client.memory_calls import allocate_file, fetch_pages
from lmcache_core.l1.arena import Arena

logger = logging.getLogger(__name__)

SLAB_NAME: Final = "lmcache-l1.slab"
"""Of the file, where a folder is given."""
MARK_BYTES: Final = 4096
_MARK: Final = b"lmcache-l1-slab\n"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe does not hold us up
_TRIES: Final = 8
_GET_FLAGS, _SET_FLAGS, _NO_COPY_ON_WRITE = 0x80086601, 0x40086602, 0x00800000  # FS_IOC_GETFLAGS, FS_NOCOW_FL


class FileArena(Arena):
    """An arena in a file that this process has locked.  `close` removes the file, and no other that has its name by then.

    Its bytes are written and read through the mapping; the kernel writes them to the disk and drops them from memory as
    it likes.  `direct_io`: copies to and from devices may open the file again and go past the page cache, whose pages
    the kernel keeps true to it; no two objects share a page."""

    def __init__(self, mapping: mmap.mmap, descriptor: int, path: Path, direct_io: bool) -> None:
        super().__init__(mapping, descriptor, None, direct_io=direct_io)
        self._slab = path
        self._backed.add(Extent(0, self.size_bytes))

    @property
    def kind(self) -> str:
        return "file"

    @property
    def file(self) -> Path:
        return self._slab

    def fetch(self, offset: int, length: int) -> None:
        fetch_pages(self.region.address + offset, length)

    def close(self) -> None:
        # Before the lock goes with the descriptor: whoever has waited for it finds that the file has no name any more.
        if self._descriptor is not None and _is_at(self._descriptor, self._slab):
            self._slab.unlink(missing_ok=True)
        super().close()


def file_arena(size_bytes: int, where: Path, owner: Mapping[str, object], direct_io: bool = False) -> FileArena:
    """`where`: a file, or a folder for one.  `owner` is what others are told who want it, too.  Where the file system
    has no direct I/O, a warning says so.  Raises ResourceError when another server has the file, when it is no file of
    ours, or when it cannot be had in this size; what is left of a server that was killed is taken over, empty."""
    path = (where / SLAB_NAME if where.is_dir() else where).absolute()
    try:
        descriptor = _locked(path)
    except OSError as error:
        raise ResourceError(
            f"gds_l1_path: '{path}' cannot be opened: {_what(error)}; give a file, not a link, in a folder that this "
            "user may write to"
        ) from None
    try:
        _empty(descriptor, path, size_bytes, owner)
        mapping = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED)
    except OSError as error:
        _drop(descriptor, path)
        raise ResourceError(
            f"gds_l1_path: '{path}' cannot be allocated with {size_bytes / 2**30:.1f} GiB: {_what(error)}; "
            f"{_remedy(error, path)}"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    if direct_io and (obstacle := direct_io_obstacle(descriptor)):
        logger.warning(
            "l1 is copied to devices through the page cache, not past it as --gds-l1-use-direct-io asks for path=%s "
            "reason=%s",
            path,
            obstacle,
        )
        direct_io = False
    return FileArena(mapping, descriptor, path, direct_io)


def direct_io_obstacle(descriptor: int) -> str | None:
    """Why this file cannot be read and written past the page cache; None where it can."""
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        return f"the file system has none: {_what(error)}"
    return None


def _locked(path: Path) -> int:
    """The file itself is locked, and has that name while it is."""
    for _ in range(_TRIES):
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
                raise ResourceError(
                    f"gds_l1_path: '{path}' is no regular file of this user alone; name a new file, or a folder"
                )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ResourceError(
                    f"gds_l1_path: '{path}' is in use by {_owner(descriptor)}; "
                    "give each server a file of its own, or stop that one first"
                ) from None
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its server has just removed it
    raise ResourceError(f"gds_l1_path: '{path}' goes away again and again; give each server a file of its own")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _empty(descriptor: int, path: Path, size_bytes: int, owner: Mapping[str, object]) -> None:
    """Nothing of a former run is left; the mark comes first, so that a file of ours is never without."""
    if os.fstat(descriptor).st_size and _mark(descriptor) is None:
        raise ResourceError(
            f"gds_l1_path: '{path}' is there already and was not made by a server like this one; name a new file, or "
            "remove it"
        )
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    _ask_for_no_copies(descriptor)
    identity = _MARK + json.dumps({**owner, "pid": os.getpid(), "host": socket.gethostname()}).encode()
    os.pwrite(descriptor, identity[:MARK_BYTES].ljust(MARK_BYTES, b"\0"), size_bytes)
    allocate_file(descriptor, size_bytes + MARK_BYTES)


def _ask_for_no_copies(descriptor: int) -> None:
    """Where a file system copies what is overwritten (btrfs), room that is allocated would not be enough."""
    flags = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        (value,) = struct.unpack("@l", flags)
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("@l", value | _NO_COPY_ON_WRITE))
    except OSError:
        return  # it does not know the wish, and has no need of it


def _mark(descriptor: int) -> bytes | None:
    """What the last page says, if it is one of ours."""
    end = os.fstat(descriptor).st_size
    page = os.pread(descriptor, MARK_BYTES, max(0, end - MARK_BYTES))
    return page[len(_MARK) :].rstrip(b"\0") if page.startswith(_MARK) else None


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(_mark(descriptor) or b"")
        return f"server '{owner['instance_id']}' (pid {owner['pid']} on {owner['host']}, boot {owner['boot_id']})"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process that has not said who it is"  # it is starting, or not one of ours


def _drop(descriptor: int, path: Path) -> None:
    """Give back what there is of a file that cannot be had as a whole."""
    if _is_at(descriptor, path):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def _what(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _remedy(error: OSError, path: Path) -> str:
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.EINVAL):
        return "this file system cannot allocate a file ahead or map it; use ext4 or xfs"
    if error.errno == errno.EFBIG:
        return "raise the limit of file sizes (ulimit -f), or lower l1_size_gb"
    room = os.statvfs(path.parent)
    free = room.f_bavail * room.f_frsize / 2**30
    return f"{free:.1f} GiB are free there; make room, use another disk, or lower l1_size_gb"
