"""One server owns a directory while it runs."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from lmcache_core import AdapterContext, ResourceError
from lmcache_object_files.finding import is_full

OWNER_BYTES_MAX = 4096
TAKE_ATTEMPTS: Final = 8


class DirectoryLock:
    """An exclusive lock on `<root>/.lock`, held by the kernel for as long as this process holds the descriptor: a server
    that was killed leaves the file, not the lock.  The file says who has it.  Any thread, but for `release`."""

    def __init__(self, root: Path, fd: int) -> None:
        self.root: Final = root
        self._fd = fd
        self._path = os.fspath(root / ".lock")
        self._status = os.fstat(fd)  # its inode is not given away while the descriptor is open

    @classmethod
    def take(cls, root: Path, context: AdapterContext) -> Self:
        """Raises ResourceError, naming the owner, when another server has it; OSError when the file cannot be opened."""
        for _ in range(TAKE_ATTEMPTS):
            fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ResourceError(
                        f"{context.name}: base_path '{root}' is in use by {_owner(fd)}; "
                        "give each server a directory of its own, or stop that one first"
                    ) from None
                lock = cls(root, fd)
                if lock.is_held:  # else the directory was replaced between open and lock
                    _sign(fd, context)
                    return lock
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        raise ResourceError(
            f"{context.name}: base_path '{root}' is replaced again and again; give each server a directory of its own"
        )

    @property
    def is_held(self) -> bool:
        """False where `<root>/.lock` has gone or is another file: the directory was removed, moved or replaced, or its mount
        has gone, and another server may own what is there now.  One look at the medium, which may block."""
        try:
            return os.path.samestat(self._status, os.lstat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release it.  The file stays, empty: were it removed, two servers could each hold a lock on a file of that name.
        Again: nothing, since the descriptor's number may be another file's by then."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)


def _sign(fd: int, context: AdapterContext) -> None:
    """Say who has it.  Where there is no room for that, a warning: the lock is what counts."""
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, _identity(context), 0)
    except OSError as error:
        if not is_full(error):
            raise
        context.logger.warning(
            "l2 disk is full: the directory does not say who has it adapter=%s error=%s", context.name, error.strerror
        )


def _identity(context: AdapterContext) -> bytes:
    owner = {
        "instance_id": context.instance_id,
        "boot_id": context.boot_id,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.fromtimestamp(context.clock.wall_ns() / 1e9, UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(owner).encode() + b"\n"


def _owner(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, OWNER_BYTES_MAX, 0))
        return (
            f"server '{owner['instance_id']}' (pid {owner['pid']} on {owner['host']}, "
            f"boot {owner['boot_id']}, started {owner['started']})"
        )
    except (ValueError, KeyError, TypeError, OSError):
        return "another process that has not said who it is"  # it is starting, or not one of ours
