"""The directory that holds the objects: where a file belongs, how it comes there, and where a damaged one goes.

<root>/.lock                                   see DirectoryLock
<root>/<model>-<8 hex>/<salt>-<8 hex>/<aa>/    objects, `<object id>.kv`
<root>/.tmp/<boot id>/                         files that are being written
<root>/.damaged/                               the newest files that were ours and turned out altered
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from lmcache_core import AdapterContext, ObjectKey, Outcome, ResourceError, media_path
from lmcache_object_files.file_check import FileCheck, check_file, is_full
from lmcache_object_files.file_names import FoundFile
from lmcache_object_files.file_walk import walk

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


DAMAGED_MAX: Final = 64
"""Number of damaged files that are kept for inspection."""
PLACES_MAX: Final = 65_536
"""Number of directories that are remembered as made; each tenant of a model has 256."""

_DAMAGED = re.compile(r"[0-9]{20}-[0-9]+-[0-9a-f]{32}\.kv")
_TEMPORARY = re.compile(r"[0-9a-f]{32}\.[0-9]+\.tmp|probe\.tmp")


class ObjectDirectory:
    """Changed only while its lock is held.  Any thread; for one key, one caller at a time may publish, remove or set
    aside.  Raises OSError."""

    def __init__(self, lock: DirectoryLock, relative_tmp_dir: str, context: AdapterContext) -> None:
        """Make sure that files can be published here."""
        self.root = root = lock.root
        self._lock = lock
        self._context = context
        self._tmp_root = root / relative_tmp_dir
        self.own_names = (".lock", ".damaged", relative_tmp_dir.split("/")[0])
        """What lies directly below the root beside the objects."""
        self.temporaries = self._tmp_root / re.sub(r"[^A-Za-z0-9_-]", "-", context.boot_id)
        self._damaged = root / ".damaged"
        self._damaged_lock = threading.Lock()  # guards the pruning of .damaged
        self._numbers = itertools.count()
        # Emptied where they are too many.
        self._durable: set[str] = set()  # directories whose entries are on the medium all the way up
        self._made: set[str] = set()  # places that were there once
        if self.temporaries.is_dir():
            remove_temporaries(self.temporaries)  # the numbers begin anew
        try:
            self.temporaries.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._try_link()
        except OSError as error:
            if not is_full(error):
                raise
            context.logger.warning(
                "l2 disk is full: stores are rejected until there is room adapter=%s path=%s", context.name, root
            )

    @property
    def is_ours(self) -> bool:
        """False where the root has gone or was replaced: what is there now may be another server's, or an empty mount point."""
        return self._lock.is_held

    def require(self) -> None:
        """Raises FileNotFoundError where the root is not `is_ours`: nothing is missing there, and nothing may change."""
        if not self.is_ours:
            raise FileNotFoundError(
                errno.ENOENT, "this server no longer has the directory, it was removed or replaced", str(self.root)
            )

    def path(self, key: ObjectKey) -> str:
        return f"{self.root}/{media_path(key)}"

    def temporary(self, object_id: bytes) -> str:
        """A path of its own for a file that is to be published; its directory may have vanished."""
        return f"{self.temporaries}/{object_id.hex()}.{next(self._numbers)}.tmp"

    def check_file(self, key: ObjectKey) -> FileCheck:
        """The state of the file of this object.  An object of another key is FOREIGN there."""
        checked = check_file(self.path(key))
        if checked.outcome is Outcome.MISSING:
            self.require()
        return FileCheck(Outcome.FOREIGN, checked.size) if checked.key not in (None, key) else checked

    def files(self, after: str | None = None) -> Iterator[FoundFile]:
        """Every file where objects are, in the order of its path below the root."""
        return walk(self.root, self.own_names, self._context.logger, after)

    def publish(self, temporary: str, key: ObjectKey, *, durable: bool) -> None:
        """Give a whole file the name of this object; `temporary` remains, and is the caller's to remove.  Raises
        FileExistsError, and changes nothing, where something is there already."""
        # A hard link, not a rename: it never replaces what is there.
        self.require()
        path = self.path(key)
        parent = os.path.dirname(path)
        if durable and parent not in self._durable:
            self._make_directories(path, durable=True)
        try:
            os.link(temporary, path)
        except FileNotFoundError:
            self._make_directories(path, durable=durable)
            os.link(temporary, path)
        if durable:
            try:
                _sync_directory(parent)
            except OSError:
                remove_file(path)  # a file that the store's answer denies must not be found
                raise

    def make_temporaries(self) -> None:
        """Again, where their directory was removed."""
        self._make_directories(f"{self.temporaries}/", durable=False)

    def has_place(self, path: str, *, durable: bool) -> bool:
        """Were the directories of this file made?  They may have been removed since.  Does not access the medium."""
        return os.path.dirname(path) in (self._durable if durable else self._made)

    def make_place(self, path: str, *, durable: bool) -> None:
        """The directories of this file, for callers that link the file there themselves."""
        self._make_directories(path, durable=durable)
        _remember(self._made, os.path.dirname(path))

    def remove(self, key: ObjectKey) -> bool:
        """False where there is no such file."""
        self.require()
        return remove_file(self.path(key))

    def set_aside(self, key: ObjectKey) -> None:
        """Move the file of this object to .damaged, and delete the oldest there when it is one too many."""
        self.require()
        self._damaged.mkdir(mode=0o700, exist_ok=True)
        name = f"{self._context.clock.wall_ns():020}-{next(self._numbers)}-{key.object_id.hex()}.kv"
        try:
            os.rename(self.path(key), self._damaged / name)
        except FileNotFoundError:
            return
        self._remove_damaged(keep=DAMAGED_MAX)

    def remove_damaged(self) -> int:
        """All that were set aside.  Returns how many."""
        self.require()
        return self._remove_damaged(keep=0) if self._damaged.is_dir() else 0

    def left_behind(self) -> Iterator[Path]:
        """Where servers that have gone kept their temporaries: the owner of the lock knows that they write no more."""
        if self._tmp_root.is_dir():
            for folder in self._tmp_root.iterdir():
                if folder != self.temporaries and folder.is_dir() and not folder.is_symlink() and self.is_ours:
                    yield folder

    def close(self) -> None:
        """Remove what is left of this server's temporaries."""
        if self.temporaries.is_dir():
            remove_temporaries(self.temporaries)

    def _remove_damaged(self, keep: int) -> int:
        with self._damaged_lock:
            aside = sorted(name for name in os.listdir(self._damaged) if _DAMAGED.fullmatch(name))
            return sum(remove_file(f"{self._damaged}/{name}") for name in aside[: max(len(aside) - keep, 0)])

    def _make_directories(self, path: str, *, durable: bool) -> None:
        """All of them between the root and the file.  The root itself is not made again: where it has vanished, a mount
        may have, and the files would go to the wrong disk."""
        self.require()
        at = str(self.root)
        for part in os.path.dirname(path)[len(at) + 1 :].split("/"):
            parent, at = at, f"{at}/{part}"
            try:
                os.mkdir(at, 0o700)
            except FileExistsError:
                pass
            if durable:
                _sync_directory(parent)
        if durable:
            _remember(self._durable, at)

    def probe(self, size: int) -> None:
        """Write a file of `size` bytes where unfinished files are, and remove it.  Raises OSError where that fails."""
        self.temporaries.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.temporaries / "probe.tmp"
        try:
            path.write_bytes(bytes(size))
        finally:
            remove_file(str(path))

    def _try_link(self) -> None:
        """Raises OSError where files cannot be published: no hard links, or another file system."""
        probe = self.temporaries / "probe.tmp"
        os.link(self.root / ".lock", probe)
        probe.unlink()


def remove_temporaries(folder: Path) -> int:
    """Remove the folder and the unfinished files in it; files of other names, and then the folder, are left alone.  Returns
    how many files it were.  Raises OSError."""
    removed = sum(remove_file(str(file)) for file in folder.iterdir() if _TEMPORARY.fullmatch(file.name))
    try:
        folder.rmdir()
    except OSError:
        pass  # it has files of others
    return removed


def remove_file(path: str) -> bool:
    """False where there is none.  Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _remember(places: set[str], place: str) -> None:
    if len(places) >= PLACES_MAX:
        places.clear()
    places.add(place)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
