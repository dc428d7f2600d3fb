"""The directory that holds the objects: where a file belongs, how it comes there, and where a damaged one goes.

<root>/.lock                                   see directory_lock.py
<root>/<model>-<8 hex>/<salt>-<8 hex>/<aa>/    objects, `<object id>.kv`
<root>/.tmp/<boot id>/                         files that are being written
<root>/.damaged/                               the newest files that were ours and turned out altered
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmcache_core import AdapterContext, ObjectKey, Outcome, media_path
from lmcache_object_files.directory_lock import DirectoryLock
from lmcache_object_files.file_names import FoundFile
from lmcache_object_files.file_walk import walk
from lmcache_object_files.finding import Finding, examine, is_full

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

    def examine(self, key: ObjectKey) -> Finding:
        """The state of the file of this object.  An object of another key is FOREIGN there."""
        finding = examine(self.path(key))
        if finding.outcome is Outcome.MISSING:
            self.require()
        return Finding(Outcome.FOREIGN, finding.size) if finding.key not in (None, key) else finding

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
