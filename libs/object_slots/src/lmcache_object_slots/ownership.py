"""One server owns a volume while it runs."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from lmcache_core import AdapterContext, ResourceError
from lmcache_object_slots.medium import MetaRegion
from lmcache_object_slots.sealed_page import PAGE_BYTES, pack_page, unpack_page

MAGIC: Final = b"LMKVOWN1"


class Ownership:
    """An exclusive lock, held by the kernel for as long as this process holds the descriptor: a server that was killed leaves
    its name on the volume, not the lock."""

    def __init__(self, region: MetaRegion, owner_at: int) -> None:
        self._region = region
        self._owner_at = owner_at

    @classmethod
    def take(cls, fd: int, region: MetaRegion, owner_at: int, name: str) -> Self:
        """Lock what the descriptor is open on; nothing is written.  Raises ResourceError, naming the owner, when another server
        has it.  The descriptor stays the caller's, and closing it releases the lock."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                f"{name} is in use by {_owner(region, owner_at)}; give each server one of its own, or stop that one first"
            ) from None
        return cls(region, owner_at)

    def sign(self, context: AdapterContext) -> None:
        """Write the owner's name to the volume: for the owner of a volume that was recognised.  Without space for that, a
        warning: the lock is what counts.  Raises any other OSError."""
        started = datetime.fromtimestamp(context.clock.wall_ns() / 1e9, UTC).isoformat(timespec="seconds")
        fields = {
            "instance_id": context.instance_id, "boot_id": context.boot_id, "pid": os.getpid(),
            "host": socket.gethostname(), "started": started,
        }  # fmt: skip
        try:
            self._region.write(self._owner_at, pack_page(MAGIC, fields))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            context.logger.warning(
                "l2 medium is full: it does not say who has it, and takes no stores adapter=%s error=%s",
                context.name, error.strerror,
            )  # fmt: skip


def is_at(descriptor: int, path: Path) -> bool:
    """Does the path still name what the descriptor is open on?  Of a device its number counts, since its node may be made anew.
    Raises OSError where that cannot be seen."""
    own = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISREG(own.st_mode):
        return os.path.samestat(own, there)
    return (stat.S_IFMT(own.st_mode), own.st_rdev) == (stat.S_IFMT(there.st_mode), there.st_rdev)


def _owner(region: MetaRegion, owner_at: int) -> str:
    try:
        fields: Mapping[str, Any] | None = unpack_page(MAGIC, region.read(owner_at, PAGE_BYTES))
    except OSError:
        fields = None
    if fields is None:
        return "another process that has not said who it is"  # it is starting, or not one of ours
    return (
        f"server '{fields['instance_id']}' (pid {fields['pid']} on {fields['host']}, "
        f"boot {fields['boot_id']}, started {fields['started']})"
    )
