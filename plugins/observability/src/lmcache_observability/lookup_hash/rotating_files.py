"""Files that are appended to, begun anew now and then, and kept in a limited number.

What cannot be written (the disk is full) is dropped and counted, never half of it: the file ends with the last whole
piece.  Writing goes on as soon as there is room.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 60.0
_NAMES_TRIED: Final = 1000


class RotatingFiles:
    """Files `<prefix>_<time>_<number>.jsonl` in a folder of their own or others'.  One thread.

    Names sort in the order in which the files were begun.  Files of earlier runs count towards the limit."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        max_age_seconds: float,
        max_bytes: int,
        max_files: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._prefix = folder, prefix
        self._max_age_seconds, self._max_bytes, self._max_files = max_age_seconds, max_bytes, max_files
        self._now = now
        self._fd: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._opened_at = 0.0
        self._logged_at = float("-inf")
        self.dropped_pieces = 0

    def prepare(self) -> None:
        """Make the folder.  Raises OSError where nothing could ever be written there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._rotate()

    def write(self, data: bytes, pieces: int) -> None:
        """Append all of `data`, which has this number of pieces, or nothing of it.  Never raises OSError."""
        try:
            if self._is_due():
                self._rotate()
            self._append(data)
        except OSError as error:
            self.dropped_pieces += pieces
            if self._now() - self._logged_at > _LOG_SECONDS:
                self._logged_at = self._now()
                reason = error.strerror or type(error).__name__
                logger.warning(
                    "cannot write, lines are dropped folder=%s reason=%s dropped=%d",
                    self._folder,
                    reason,
                    self.dropped_pieces,
                )

    def close(self) -> None:
        """A file that nothing was written to goes."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            if self._path is not None and not self._size:
                self._path.unlink(missing_ok=True)

    def _is_due(self) -> bool:
        if self._fd is None or self._size >= self._max_bytes:
            return True
        age = self._now() - self._opened_at
        return age >= self._max_age_seconds or age < 0  # the clock was put back

    def _append(self, data: bytes) -> None:
        fd = self._fd
        assert fd is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(fd, memoryview(data)[written:])
        except OSError:
            if written:
                os.ftruncate(fd, self._size)
            raise
        self._size += written

    def _rotate(self) -> None:
        fd, path = self._create()
        self.close()
        self._fd, self._path, self._size, self._opened_at = fd, path, 0, self._now()
        self._remove_oldest()

    def _create(self) -> tuple[int, Path]:
        """An existing file is never opened: names that are taken are skipped."""
        stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(self._now()))
        for number in range(_NAMES_TRIED):
            path = self._folder / f"{self._prefix}_{stamp}_{number:06d}.jsonl"
            try:
                return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path
            except FileExistsError:
                continue
        raise FileExistsError(f"{_NAMES_TRIED} files of this second are there")

    def _remove_oldest(self) -> None:
        """Never the one that is open, whose name sorts first when the clock was put back."""
        pattern = f"{self._prefix}_{'[0-9]' * 8}_{'[0-9]' * 6}_{'[0-9]' * 6}.jsonl"
        files = sorted((path for path in self._folder.glob(pattern) if path != self._path), key=lambda path: path.name)
        for path in files[: max(0, len(files) + 1 - self._max_files)]:
            path.unlink(missing_ok=True)
