"""Writes a recording.  Records are gathered, and written as one frame."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final

from lmcache_observability.trace.format import FRAME_BYTES_MAX, MAGIC, encode_record, frame
from lmcache_observability.trace.records import Lost, Record

logger = logging.getLogger(__name__)

_GATHERED_MAX: Final = 1 << 20
_RECORD_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * _GATHERED_MAX
"""It may come behind others that were gathered."""
_LOG_SECONDS: Final = 60.0
_NAMES_TRIED: Final = 1000


class Recorder:
    """One thread.  What cannot be written is left out and counted, and the recording says where it is missing."""

    def __init__(self, path: Path, size_max_bytes: int) -> None:
        """An existing file is never overwritten: the name gets the time then.  Raises OSError."""
        self._fd, self.path = _create(path)
        self._is_open = True
        self._size_max = size_max_bytes
        self._size = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._missing = 0
        self._logged_at = float("-inf")
        self.lost_records = 0
        """A lookup behind lost records must not count on what was recorded before them."""
        try:
            self._write(MAGIC)
        except OSError:
            os.close(self._fd)
            raise

    def add(self, record: Record) -> None:
        try:
            encoded = encode_record(record)
        except Exception as error:  # noqa: BLE001 - an event of a plugin may hold anything
            self._lose(1, f"a record cannot be encoded ({type(error).__name__})")
            return
        if len(encoded) > _RECORD_BYTES_MAX:
            self._lose(1, f"a record of {len(encoded)} bytes is longer than {_RECORD_BYTES_MAX}")
            return
        self._gathered.append(encoded)
        self._gathered_bytes += len(encoded)
        if self._gathered_bytes > _GATHERED_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered.  Never raises OSError."""
        if not self._gathered:
            return
        records, self._gathered, self._gathered_bytes = self._gathered, [], 0
        first = [encode_record(Lost(time.time(), self._missing))] if self._missing else []
        data = frame(first + records)
        try:
            if self._size + len(data) > self._size_max:
                raise OSError(f"size_max_bytes {self._size_max} is reached")
            self._write(data)
        except OSError as error:
            self._count_lost(len(records), str(error.strerror or error))
        else:
            self._missing = 0

    def close(self) -> None:
        if self._is_open:
            self.flush()
            os.close(self._fd)
            self._is_open = False

    def _lose(self, records: int, reason: str) -> None:
        """What came before is written first: the recording says where something is missing."""
        self.flush()
        self._count_lost(records, reason)

    def _count_lost(self, records: int, reason: str) -> None:
        self._missing += records
        self.lost_records += records
        if time.monotonic() - self._logged_at > _LOG_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("cannot record file=%s reason=%s lost_records=%d", self.path, reason, self.lost_records)

    def _write(self, data: bytes) -> None:
        """All of it or nothing.  Raises OSError."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += written


def _create(path: Path) -> tuple[int, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    others = (path.with_name(f"{path.stem}-{stamp}-{number}{path.suffix}") for number in range(_NAMES_TRIED))
    for candidate in (path, *others):
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return os.open(candidate, flags, 0o600), candidate
        except FileExistsError:
            continue
    raise FileExistsError(f"{_NAMES_TRIED} recordings of this second are there")
