"""The `drawer` adapter: one row per object."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lmcache_core import (
    HEADER_BYTES,
    Capability,
    KeyPage,
    ObjectHeader,
    Outcome,
    PluginSettings,
    ResourceError,
    Usage,
    inspect,
)
from lmcache_l2_adapter import BlockingL2Adapter, ByteLedger

TABLE = "CREATE TABLE IF NOT EXISTS objects (id BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


class DrawerSettings(PluginSettings):
    """Where the database is, and how much it may hold."""

    path: Annotated[Path, Field(description="The database file; its folder must exist.")]
    max_size_gb: Annotated[float, Field(gt=0, description="Most that is kept, in GiB.")] = 10.0


class DrawerAdapter(BlockingL2Adapter):
    capabilities = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE
    contains_is_local = True

    def __init__(self, settings, context):
        try:
            self._db = sqlite3.connect(settings.path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(TABLE)
        except sqlite3.Error as error:
            raise ResourceError(
                f"{context.name}: path '{settings.path}' cannot be used ({error}); name another"
            ) from None
        self._lock = threading.Lock()
        self._ids = dict(self._db.execute("SELECT id, length(data) FROM objects"))
        self._ledger = ByteLedger(int(settings.max_size_gb * 2**30))
        for size in self._ids.values():
            self._ledger.adopt(size)
        super().__init__(context, workers=2)

    def store(self, key, buffer):
        if key.object_id in self._ids:
            return Outcome.DONE
        if not self._ledger.reserve(buffer.length):
            return Outcome.REJECTED
        try:
            with self._lock:
                self._db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", (key.object_id, buffer.view))
        except BaseException:
            self._ledger.release(buffer.length)
            raise
        self._ids[key.object_id] = buffer.length
        self._ledger.commit(buffer.length)
        return Outcome.DONE

    def load(self, key, buffer):
        with self._lock, closing(self._db.execute("SELECT data FROM objects WHERE id = ?", (key.object_id,))) as found:
            row = found.fetchone()
        if row is None:
            return Outcome.MISSING
        if len(row[0]) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = row[0]
        return Outcome.DONE

    def contains(self, key):
        return key.object_id in self._ids

    def delete(self, key):
        size = self._ids.pop(key.object_id, None)
        if size is None:
            return Outcome.MISSING
        with self._lock:
            self._db.execute("DELETE FROM objects WHERE id = ?", (key.object_id,))
        self._ledger.drop(size)
        return Outcome.DONE

    def usage(self):
        return Usage(self._ledger.used_bytes, self._ledger.capacity_bytes, len(self._ids))

    def list_keys(self, cursor, limit):
        after = bytes.fromhex(cursor or "")
        query = "SELECT id, substr(data, 1, ?) FROM objects WHERE id > ? ORDER BY id LIMIT ?"
        with self._lock:
            rows = self._db.execute(query, (HEADER_BYTES, after, limit)).fetchall()
        headers = [inspect(page) for _, page in rows]
        keys = tuple(header.key for header in headers if isinstance(header, ObjectHeader))
        return KeyPage(keys, rows[-1][0].hex() if len(rows) == limit else None)

    def stopped(self):
        self._db.close()


def open_drawer(settings, context):
    return DrawerAdapter(settings, context)
