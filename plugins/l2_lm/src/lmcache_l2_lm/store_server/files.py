"""Values in files of a folder, one each.

A file is a page of a head and the value.  It is written as `NUMBER.part` and called `NUMBER.value` when it is whole; numbers
rise, so that of two files of one key the higher one is the newer.  The head is written last.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import struct
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from lmcache_core import ResourceError
from lmcache_l2_lm.frames import KEY_BYTES, Form, is_key
from lmcache_l2_lm.line import Line
from lmcache_l2_lm.store_server.values import BrokenOffError, MediumError, ShortageError

logger = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(f"<8sq6i{KEY_BYTES}s16s")
"""Magic, length, format, dtype, dimensions, key, and the digest of all that and of the value."""
MAGIC: Final = b"LMSTORE1"
HEAD_BYTES: Final = 4096
"""The value begins at a page."""
BLOCK_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 16
_WHOLE: Final = ".value"
_PART: Final = ".part"
_LOCK: Final = ".lock"


class Recovered(NamedTuple):
    """A value of an earlier run."""

    key: bytes
    stored: StoredInFile


class FileMedium:
    """As of `Medium`: one folder, which is this process's alone."""

    def __init__(self, folder: Path) -> None:
        """Raises ResourceError where the folder cannot be used, or any user may write to it."""
        self.folder: Final = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & stat.S_IWOTH:
                raise ResourceError(
                    f"any user may write to --path {folder}, and so make values; name a folder in it, or chmod o-w {folder}"
                )
            self._lock: Final = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ResourceError(f"--path {folder} cannot be used ({error.strerror}); name a folder that can") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ResourceError(
                f"--path {folder} is another store server's; stop that one, or name another folder"
            ) from None
        self._numbers = count()

    def recover(self) -> Iterator[Recovered]:
        """Whole values of earlier runs, oldest first, each key once.  What is left of others of ours is removed.

        Raises ResourceError where the folder cannot be read."""
        try:
            found = sorted((path for path in self.folder.iterdir() if _number(path) is not None), key=_number_of)
        except OSError as error:
            raise ResourceError(
                f"--path {self.folder} cannot be read ({error.strerror}); name another folder"
            ) from None
        if found:
            self._numbers = count(_number_of(found[-1]) + 1)
        newest: dict[bytes, Path] = {}
        heads: dict[bytes, StoredInFile] = {}
        for path in found:
            read = _read_head(path) if path.suffix == _WHOLE else None
            if read is None:
                _remove(path)
                continue
            if old := newest.pop(read.key, None):
                _remove(old)
            newest[read.key], heads[read.key] = path, read.stored
        for key in newest:
            yield Recovered(key, heads[key])

    def begin(self, key: bytes, form: Form, length: int) -> FileDraft:
        try:
            return FileDraft(self.folder / f"{next(self._numbers):016x}", key, form, length)
        except OSError as error:
            raise MediumError(f"{self.folder}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._lock)


class FileDraft:
    """As of `Draft`."""

    def __init__(self, path: Path, key: bytes, form: Form, length: int) -> None:
        """Raises OSError."""
        self._path: Final = path
        self._head: Final = _packed(key, form, length)
        self._form: Final = form
        self._left = length
        self._hash: Final = xxhash.xxh3_128(self._head)
        self._block: Final = memoryview(bytearray(min(length, BLOCK_BYTES)))
        self._at = 0
        self._end = HEAD_BYTES
        self._length: Final = length
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path.with_suffix(_PART), flags, 0o600)

    def place(self) -> memoryview:
        return self._block[self._at : min(len(self._block), self._at + self._left)]

    def filled(self, count: int) -> None:
        self._at += count
        self._left -= count
        if self._at == len(self._block) or not self._left:
            self._write(self._block[: self._at])
            self._at = 0

    def finish(self) -> StoredInFile:
        head = self._head + self._hash.digest()
        try:
            _write_all(self._descriptor, memoryview(head.ljust(HEAD_BYTES, b"\0")), 0)
            self._close()
            os.rename(self._path.with_suffix(_PART), path := self._path.with_suffix(_WHOLE))
        except OSError as error:
            raise MediumError(f"{self._path.parent}: {error.strerror}") from None
        return StoredInFile(path, self._form, self._length, is_checked=True)

    def abandon(self) -> None:
        try:
            self._close()
        except OSError:
            pass  # nothing of it is kept
        _remove(self._path.with_suffix(_PART))

    def _write(self, part: memoryview) -> None:
        self._hash.update(part)
        try:
            self._end += _write_all(self._descriptor, part, self._end)
        except OSError as error:
            raise MediumError(f"{self._path.parent}: {error.strerror}") from None

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class StoredInFile:
    """As of `Stored`."""

    def __init__(self, path: Path, form: Form, length: int, *, is_checked: bool) -> None:
        """`is_checked`: this process has written it."""
        self.form: Final = form
        self.length: Final = length
        self._path: Final = path
        self._checking: Final = threading.Lock()
        self._is_checked = is_checked  # guarded by _checking

    def check(self) -> None:
        with self._checking:
            if not self._is_checked:
                try:
                    is_right = _digest_is_right(self._path, self.length)
                except OSError as error:
                    raise _lost(self._path, error) from None
                if not is_right:
                    raise MediumError(f"{self._path} is not what was written")
                self._is_checked = True

    def send(self, line: Line, head: bytes, end: float) -> None:
        try:
            descriptor = _opened(self._path)
        except OSError as error:
            raise _lost(self._path, error) from None
        try:
            if os.fstat(descriptor).st_size != HEAD_BYTES + self.length:
                raise MediumError(f"{self._path} has another length than was written")
            line.send(head, end=end)
            try:
                line.send_file(descriptor, HEAD_BYTES, self.length, end)
            except (ConnectionError, TimeoutError):
                raise
            except (OSError, EOFError) as error:
                raise BrokenOffError(f"{self._path}: {error}") from None
        finally:
            os.close(descriptor)

    def free(self) -> None:
        _remove(self._path)


def _lost(path: Path, error: OSError) -> MediumError:
    kind = ShortageError if error.errno in (errno.EMFILE, errno.ENFILE) else MediumError
    return kind(f"{path}: {error.strerror}")


def _opened(path: Path) -> int:
    """A descriptor for reading.  Raises OSError, also for a link, and for what is not a file."""
    descriptor = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    )  # a pipe waits for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file")
    return descriptor


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("a file that is not needed any more stays file=%s error=%s", path, error.strerror)


def _packed(key: bytes, form: Form, length: int) -> bytes:
    """The head, but for the digest."""
    head = _HEAD.pack(MAGIC, length, form.format, form.dtype, *form.dimensions, key.ljust(KEY_BYTES), b"")
    return head[:-_DIGEST_BYTES]


def _read_head(path: Path) -> Recovered | None:
    """None: it is not a whole value."""
    try:
        with open(_opened(path), "rb") as file:
            head = file.read(_HEAD.size)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return None
    if len(head) < _HEAD.size:
        return None
    magic, length, kind, dtype, *dimensions, key, _ = _HEAD.unpack(head)
    key = key.rstrip(b" ")
    if magic != MAGIC or length < 0 or size != HEAD_BYTES + length or not is_key(key):
        return None
    form = Form(kind, dtype, tuple(dimensions))
    return Recovered(key, StoredInFile(path, form, length, is_checked=False))


def _digest_is_right(path: Path, length: int) -> bool:
    """Raises OSError."""
    with open(_opened(path), "rb", buffering=0) as file:
        head = file.read(_HEAD.size)
        found = xxhash.xxh3_128(head[:-_DIGEST_BYTES])
        file.seek(HEAD_BYTES)
        block = memoryview(bytearray(BLOCK_BYTES))
        while got := file.readinto(block):
            found.update(block[:got])
            length -= got
        return not length and found.digest() == head[-_DIGEST_BYTES:]


def _write_all(descriptor: int, data: memoryview, at: int) -> int:
    """Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], at + written)
    return written


def _number(path: Path) -> int | None:
    """Of a file of ours; None: of another."""
    if path.suffix not in (_WHOLE, _PART) or len(path.stem) != 16:
        return None
    try:
        return int(path.stem, 16)
    except ValueError:
        return None


def _number_of(path: Path) -> int:
    number = _number(path)
    assert number is not None
    return number
