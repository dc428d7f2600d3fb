"""The state in a file of SQLite, and in memory: for one coordinator."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import Field

from lmcache_client.errors import ResourceError
from lmcache_core import PluginSettings
from lmcache_fleet.state import CoordinatorState, Reading, StateConflictError, StateUnavailableError, Versioned

logger = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revisions (last INTEGER NOT NULL);
INSERT INTO revisions SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM revisions);
"""


class SqliteSettings(PluginSettings):
    address: str = Field(min_length=1, description="The file; it is made where there is none.")


def open_sqlite(settings: SqliteSettings) -> CoordinatorState:
    return SqliteState(settings.address)


def open_memory(settings: None) -> CoordinatorState:
    logger.warning("--state memory: quotas and secrets are lost when the coordinator ends")
    state = SqliteState(":memory:")
    state.durable = False
    return state


class SqliteState(CoordinatorState):
    """A file, with a write-ahead log that is synchronised at each write; `:memory:` for none.  Processes of one machine may
    open the same file.  One connection, used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """Raises ResourceError."""
        self._path = path
        self._lock = threading.Lock()
        try:
            if path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ResourceError(
                f"--state {path}: cannot be opened: {error}; give a file in a folder of your own"
            ) from None

    def read(self, prefix: str) -> Reading:
        with self._access() as connection:
            # one statement, so that both are of one moment
            rows = connection.execute(
                "SELECT last, key, value, revision FROM revisions LEFT JOIN entries ON substr(key, 1, ?) = ?",
                (len(prefix), prefix),
            ).fetchall()
        entries = {key: Versioned(value, revision) for _, key, value, revision in rows if key is not None}
        return Reading(rows[0][0], entries)

    def write(self, key: str, value: bytes | None, revision: int | None = None) -> int:
        with self._changing() as connection:
            row = connection.execute("SELECT revision FROM entries WHERE key = ?", (key,)).fetchone()
            if revision is not None and revision != (row[0] if row else 0):
                raise StateConflictError(f"'{key}' was changed by another writer; try again")
            (new,) = connection.execute("UPDATE revisions SET last = last + 1 RETURNING last").fetchone()
            if value is None:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            else:
                connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, new))
        return int(new)

    def wait(self, prefix: str, after: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not (changed := self._revision() > after) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return changed

    def _revision(self) -> int:
        with self._access() as connection:
            return int(connection.execute("SELECT last FROM revisions").fetchone()[0])

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        with self._changing() as connection:
            # of the machine, the same for all of its processes, whatever its calendar says; read when no other one can write
            now = time.monotonic()
            # further ahead than a lease lasts: of another machine, or from before this one was started again
            taken = connection.execute(
                "INSERT INTO leases VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, "
                "until = excluded.until "
                "WHERE leases.holder = excluded.holder OR leases.until <= ? OR leases.until > excluded.until",
                (name, holder, now + seconds, now),
            )
        return taken.rowcount == 1

    def release(self, name: str, holder: str) -> None:
        with self._access() as connection:
            connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """What the block does is done as a whole, and by one process at a time."""
        with self._access() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _access(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StateUnavailableError(
                    f"--state {self._path}: {error}; see whether its disk is full or was unmounted"
                ) from error
