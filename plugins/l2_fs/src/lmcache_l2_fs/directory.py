"""The directory that holds the objects: where a file belongs, how it comes there, and where a damaged one goes.

<root>/.lock                                   see directory_lock.py
<root>/<model>-<8 hex>/<salt>-<8 hex>/<aa>/    objects, `<object id>.kv`
<root>/.tmp/<boot id>/                         files that are being written
<root>/.damaged/                               the newest files that were ours and turned out altered
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from lmcache_core import AdapterContext, ObjectKey, Outcome, media_path
from lmcache_l2_fs.object_files import Finding, FoundFile, examine, walk
from lmcache_l2_fs.object_io import ObjectIO

DAMAGED_MAX = 64
"""So many damaged files are kept for whoever wants to know why."""

_TEMPORARY = re.compile(r"[0-9a-f]{32}\.[0-9]+\.tmp|probe\.tmp")
_DAMAGED = re.compile(r"[0-9]{20}-[0-9]+-[0-9a-f]{32}\.kv")


class ObjectDirectory:
    """Owned by whoever holds the lock on it.  Any thread; for one key, one caller at a time may publish, remove or set
    aside.  Raises OSError."""

    def __init__(self, root: Path, relative_tmp_dir: str, context: AdapterContext) -> None:
        """Clear what former owners left unfinished and make sure that files can be published here."""
        self.root = root
        self._context = context
        self._tmp_name = relative_tmp_dir.split("/")[0]
        self._tmp_root = root / relative_tmp_dir
        self.temporaries = self._tmp_root / re.sub(r"[^A-Za-z0-9_-]", "-", context.boot_id)
        self._damaged = root / ".damaged"
        self._damaged_lock = threading.Lock()  # guards the pruning of .damaged
        self._numbers = itertools.count()
        self._durable: set[str] = set()  # directories whose entries are on the medium all the way up
        self._clear_temporaries()
        self.temporaries.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._try_link()

    def path(self, key: ObjectKey) -> str:
        return f"{self.root}/{media_path(key)}"

    def examine(self, key: ObjectKey) -> Finding:
        """What stands in the place of this object?  An object of another key is FOREIGN there."""
        finding = examine(self.path(key))
        return Finding(Outcome.FOREIGN, finding.size) if finding.key not in (None, key) else finding

    def files(self, after: str | None = None) -> Iterator[FoundFile]:
        """Every file where objects are, in the order of its path below the root."""
        return walk(self.root, (".lock", ".damaged", self._tmp_name), self._context.logger, after)

    def publish(self, key: ObjectKey, data: memoryview, io: ObjectIO) -> None:
        """Make `data` the file of this object, whole or not at all.  Raises FileExistsError, and changes nothing, where
        something is there already."""
        temporary = f"{self.temporaries}/{key.object_id.hex()}.{next(self._numbers)}.tmp"
        try:
            try:
                io.create(temporary, data)
            except FileNotFoundError:
                self._make_directories(f"{self.temporaries}/", durable=False)
                io.create(temporary, data)
            self._link(temporary, self.path(key), durable=io.fsync)
        finally:
            _unlink(temporary)

    def remove(self, key: ObjectKey) -> bool:
        """False where there is no such file."""
        return _unlink(self.path(key))

    def set_aside(self, key: ObjectKey) -> None:
        """Move the file of this object to .damaged, and delete the oldest there when it is one too many."""
        self._damaged.mkdir(mode=0o700, exist_ok=True)
        name = f"{self._context.clock.wall_ns():020}-{next(self._numbers)}-{key.object_id.hex()}.kv"
        try:
            os.rename(self.path(key), self._damaged / name)
        except FileNotFoundError:
            return
        with self._damaged_lock:
            kept = sorted(name for name in os.listdir(self._damaged) if _DAMAGED.fullmatch(name))
            for oldest in kept[:-DAMAGED_MAX]:
                _unlink(f"{self._damaged}/{oldest}")

    def close(self) -> None:
        """Remove what is left of this server's temporaries."""
        self._clear_temporaries()

    def _link(self, temporary: str, path: str, *, durable: bool) -> None:
        # A hard link, not a rename: it never replaces what is there.
        parent = os.path.dirname(path)
        if durable and parent not in self._durable:
            self._make_directories(path, durable=True)
        try:
            os.link(temporary, path)
        except FileNotFoundError:
            self._make_directories(path, durable=durable)
            os.link(temporary, path)
        if durable:
            _sync_directory(parent)

    def _make_directories(self, path: str, *, durable: bool) -> None:
        """All of them between the root and the file.  The root itself is not made again: where it has vanished, a mount
        may have, and the files would go to the wrong disk."""
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
            self._durable.add(at)

    def _try_link(self) -> None:
        """Raises OSError where files cannot be published: no hard links, or another file system."""
        probe = self.temporaries / "probe.tmp"
        os.link(self.root / ".lock", probe)
        probe.unlink()

    def _clear_temporaries(self) -> None:
        """Whoever holds the lock knows that the other writers are gone.  Files of other names are left alone."""
        if not self._tmp_root.is_dir():
            return
        cleared = 0
        for folder in self._tmp_root.iterdir():
            if not folder.is_dir() or folder.is_symlink():
                continue
            for file in folder.iterdir():
                if _TEMPORARY.fullmatch(file.name):
                    cleared += _unlink(str(file))
            try:
                folder.rmdir()
            except OSError:
                pass  # somebody else's files are in it
        if cleared:
            self._context.logger.info("unfinished files removed adapter=%s files=%d", self._context.name, cleared)


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
