"""Reads a recording, a frame at a time: it may be larger than memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_core import ConfigError, ResourceError
from lmcache_observability.trace.format import FrameReader
from lmcache_observability.trace.hash_tree import HashReader
from lmcache_observability.trace.record_events import operation
from lmcache_observability.trace.records import EventRecord, Lookup, Lost, Record

_TIME_MAX: Final = 2.0**33
"""Seconds since the epoch; later than any clock."""


class Entry(NamedTuple):
    """`hashes` are those of a lookup, in the order of its prompt; of everything else there are none."""

    record: Record
    hashes: list[bytes]


class TraceReader:
    """The records of a file, in order, as far as it went when this was made.  After reading, `torn_bytes` says what was left
    unread."""

    def __init__(self, path: str) -> None:
        """Raises ResourceError for a file that cannot be read, ConfigError for one that is not a recording."""
        self.path = path
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise ResourceError(f"{path} is not a file")
            with Path(path).open("rb") as file:
                self._frames = FrameReader(file, found.st_size)
        except OSError as error:
            raise _unreadable(path, error) from None
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        self._size = found.st_size

    @property
    def torn_bytes(self) -> int:
        return self._frames.torn_bytes

    def __iter__(self) -> Iterator[Entry]:
        """Raises ConfigError for a record that no server wrote, ResourceError when the file cannot be read any more."""
        hashes = HashReader()
        for event_record in self._records():
            record = operation(event_record) if isinstance(event_record, EventRecord) else event_record
            try:
                _check(record)
                prompt = hashes.hear(record.known, record.more) if isinstance(record, Lookup) else []
            except ValueError as error:
                raise ConfigError(f"{self.path}: a damaged record of type {type(record).__name__}: {error}") from None
            if isinstance(record, Lost):
                hashes.forget()
            yield Entry(record, prompt)

    def _records(self) -> Iterator[Record]:
        try:
            with Path(self.path).open("rb") as file:
                self._frames = FrameReader(file, self._size)
                yield from self._frames
        except OSError as error:
            raise _unreadable(self.path, error) from None


def _unreadable(path: str, error: OSError) -> ResourceError:
    return ResourceError(f"{path} cannot be read: {error.strerror or error}")


def _check(record: Record) -> None:
    """Raises ValueError for what no server ever wrote."""
    if not 0 <= record.at <= _TIME_MAX:
        raise ValueError(f"its time is {record.at}")
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name} is {value}")
