"""L1's memory as a file on a fast disk, mapped: larger than memory, and as fast as the disk.

The file holds the arena, and behind it one page that says whose it is.  It is allocated whole before anything is placed
on it, so that a full disk is an error at the start and not a SIGBUS later.  What a former run left in it is never read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import mmap
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from pydantic import Field

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import allocate_file, fetch_pages
from lmcache_core import L1Memory, L1MemoryContext, MemoryRegion, PluginSettings

logger = logging.getLogger(__name__)

SLAB_NAME: Final = "lmcache-l1.slab"
"""Of the file, where a folder is given."""
MARK_BYTES: Final = 4096
_MARK: Final = b"lmcache-l1-slab\n"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe does not hold us up
_TRIES: Final = 8
_GET_FLAGS, _SET_FLAGS, _NO_COPY_ON_WRITE = 0x80086601, 0x40086602, 0x00800000  # FS_IOC_GETFLAGS, FS_NOCOW_FL


class FileMemorySettings(PluginSettings):
    """A file on a fast disk that is L1 instead of memory: `--l1-size-gb` of it are allocated at the start."""

    path: str = Field(min_length=1, description="The file, or a folder for one.")
    use_direct_io: bool = Field(
        True, description="Copies between a GPU and that file go past the page cache, where the disk can do that."
    )


class FileMemory(L1Memory):
    """A file that this process has locked.  `unlink` removes it, and no other file that has its name by then.

    Its bytes are written and read through the mapping; the kernel writes them to the disk and drops them from memory as
    it likes.  `direct_io`: copies to and from devices may open the file again and go past the page cache, whose pages
    the kernel keeps true to it; no two objects share a page."""

    def __init__(self, mapping: mmap.mmap, descriptor: int, path: Path, direct_io: bool) -> None:
        self._mapping = mapping
        self._descriptor: int | None = descriptor
        self._path = path
        view = memoryview(mapping)
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        del anchor
        self._region = MemoryRegion(address, len(view), view, descriptor, direct_io=direct_io)

    @property
    def region(self) -> MemoryRegion:
        return self._region

    @property
    def kind(self) -> str:
        return "file"

    @property
    def path(self) -> Path:
        return self._path

    def fetch(self, offset: int, length: int) -> None:
        fetch_pages(self._region.address + offset, length)

    def unlink(self) -> None:
        # Before the lock goes with the descriptor: a server that waits for it finds that the file has no name any more.
        if self._descriptor is not None and _is_at(self._descriptor, self._path):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self.unlink()
        self._region.view.release()
        with contextlib.suppress(
            BufferError
        ):  # an adapter that did not release its buffers keeps the mapping, not the name
            self._mapping.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def open_file_memory(settings: FileMemorySettings, context: L1MemoryContext) -> FileMemory:
    """Where the file system has no direct I/O, a warning says so.  Raises ResourceError when another server has the file,
    when it is not a file of ours, or when it cannot be allocated in this size; the file of a server that was killed is taken
    over, empty."""
    where = Path(settings.path)
    if settings.path.endswith("/") and not where.is_dir():
        raise ResourceError(
            f"gds_l1_path: '{settings.path}' is not a folder; make it, or mount it, or leave out the slash for a file"
        )
    path = (where / SLAB_NAME if where.is_dir() else where).absolute()
    size_bytes = context.size_bytes
    try:
        descriptor = _locked(path)
    except OSError as error:
        raise ResourceError(
            f"gds_l1_path: '{path}' cannot be opened: {_what(error)}; give a file, not a link, in a folder that this "
            "user may write to"
        ) from None
    try:
        _empty(descriptor, path, context)
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
    direct_io = settings.use_direct_io
    if direct_io and (refusal := direct_io_refusal(descriptor)):
        logger.warning(
            "l1 is copied to devices through the page cache, not past it as --gds-l1-use-direct-io asks for path=%s "
            "reason=%s",
            path,
            refusal,
        )
        direct_io = False
    return FileMemory(mapping, descriptor, path, direct_io)


def direct_io_refusal(descriptor: int) -> str | None:
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
                    f"gds_l1_path: '{path}' is not a regular file of this user alone; name a new file, or a folder"
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


def _empty(descriptor: int, path: Path, context: L1MemoryContext) -> None:
    """Nothing of a former run is left; the mark comes first, so that a file of ours is never without."""
    size_bytes = context.size_bytes
    if os.fstat(descriptor).st_size and _mark(descriptor) is None:
        raise ResourceError(
            f"gds_l1_path: '{path}' is there already and was not made by a server like this one; name a new file, or "
            "remove it"
        )
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    _ask_for_no_copies(descriptor)
    owner = {"instance_id": context.instance_id, "boot_id": context.boot_id}
    identity = _MARK + json.dumps({**owner, "pid": os.getpid(), "host": socket.gethostname()}).encode()
    os.pwrite(descriptor, identity[:MARK_BYTES].ljust(MARK_BYTES, b"\0"), size_bytes)
    allocate_file(descriptor, size_bytes + MARK_BYTES)


def _ask_for_no_copies(descriptor: int) -> None:
    """Where a file system copies what is overwritten (btrfs), allocated space would not be enough."""
    flags = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        (value,) = struct.unpack("@l", flags)
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("@l", value | _NO_COPY_ON_WRITE))
    except OSError:
        return  # it does not know the flag, and does not need it


def _mark(descriptor: int) -> bytes | None:
    """The content of the last page, if it is one of ours."""
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
    """Remove a file that cannot be allocated as a whole."""
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
    found = os.statvfs(path.parent)
    free = found.f_bavail * found.f_frsize / 2**30
    return f"{free:.1f} GiB are free there; make room, use another disk, or lower l1_size_gb"
