"""A coordinator's state in Redis or Valkey: one server, or a master that sentinels name.

Entries are the fields of one hash, `REVISION:value`, with their keys in a sorted set beside it, so that those of a prefix are
read without the others; a counter is the revision of the whole.  Scripts make each call one step.
A fail-over may lose what was acknowledged shortly before, because replicas follow later: the README says what that means.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from pydantic import Field, field_validator
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from lmcache_core import PluginSettings
from lmcache_fleet.state import CoordinatorState, Reading, StateConflictError, StateUnavailableError, Versioned

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 3.0
SENTINEL_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.5

_INDEXED: Final = """
if redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[3]) then
    redis.call('DEL', KEYS[3])
    for _, key in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('ZADD', KEYS[3], 0, key) end
end
"""
"""Goes before what follows, for entries from before there was the set."""
_READ: Final = """
local found = {redis.call('GET', KEYS[2]) or '0'}
for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], ARGV[1], ARGV[2])) do
    local entry = redis.call('HGET', KEYS[1], key)
    if entry then
        found[#found + 1] = key
        found[#found + 1] = entry
    end
end
return found
"""
"""The first and the last key.  Returns the revision of the whole, and keys with their entries."""
_WRITE: Final = """
local old = redis.call('HGET', KEYS[1], ARGV[1])
local now = old and string.match(old, '^%d+') or '0'
if ARGV[2] ~= '' and ARGV[2] ~= now then return 0 end
local new = redis.call('INCR', KEYS[2])
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('ZREM', KEYS[3], ARGV[1])
else
    redis.call('ZADD', KEYS[3], 0, ARGV[1])
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', new) .. ARGV[3])
end
return new
"""
"""Key, expected revision or nothing, and nothing or a colon with the value.  Returns the new revision, or 0."""
_ACQUIRE: Final = """
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] or (not holder and server == ARGV[3]) then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return {1, server}
end
return {0, server}
"""
"""Holder, milliseconds, and the server that may be believed that there is no holder.  Returns whether it took it, and the
server."""
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisSettings(PluginSettings):
    address: str = Field(
        min_length=1,
        description="redis://USER:PASSWORD@HOST:PORT/DATABASE, rediss:// with TLS, or sentinel://HOST:PORT,HOST:PORT/MASTER.",
        json_schema_extra={"secret": True},
    )
    prefix: str = Field("lmcache:", min_length=1, description="Begins every key; one fleet has one.")

    @field_validator("address")
    @classmethod
    def _url(cls, value: str) -> str:
        url = f"redis:{value}" if value.startswith("//") else value  # --state redis://HOST
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "sentinel") or not parts.netloc:
            raise ValueError(
                "expected redis://HOST:PORT/0, rediss://HOST:PORT/0 or sentinel://HOST:PORT,HOST:PORT/MASTER"
            )
        if parts.scheme == "sentinel" and not parts.path.strip("/"):
            raise ValueError("expected the name of the master at the end: sentinel://HOST:PORT,HOST:PORT/MASTER")
        return url


def open_redis(settings: RedisSettings) -> CoordinatorState:
    return RedisState(settings)


class RedisState(CoordinatorState):
    shared = True

    def __init__(self, settings: RedisSettings) -> None:
        """Connects later."""
        parts = urlsplit(settings.address)
        options: dict[str, Any] = {
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "retry": Retry(NoBackoff(), 0),  # a write that may have been made is not made again
        }
        self._sentinel: Any = None
        if parts.scheme == "sentinel":
            user, _, hosts = parts.netloc.rpartition("@")
            name, _, password = user.partition(":")
            short = {**options, "socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
            untyped: Any = Sentinel
            sentinel = self._sentinel = untyped([_address(host) for host in hosts.split(",")], sentinel_kwargs=short)
            login = {"username": name or None, "password": password or None}
            self._redis = sentinel.master_for(parts.path.strip("/"), **login, **options)
            self._where = f"the master '{parts.path.strip('/')}' of {hosts}"
        else:
            self._redis = redis.Redis.from_url(settings.address, **options)
            self._where = parts.netloc.rpartition("@")[2]
        prefix = settings.prefix
        self._keys = [f"{prefix}entries", f"{prefix}revision", f"{prefix}keys"]
        self._leases = f"{prefix}lease:"
        self._lock = threading.Lock()  # guards what follows
        self._server: tuple[bytes, float] = (b"", 0.0)
        """The server that answers about leases, and since when."""

    def read(self, prefix: str) -> Reading:
        first, end = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"  # no key has that byte
        revision, *fields = self._run(_INDEXED + _READ, self._keys, first, end)
        entries = {}
        for key, field in zip(fields[::2], fields[1::2], strict=True):
            number, _, value = field.partition(b":")
            entries[key.decode()] = Versioned(value, int(number))
        return Reading(int(revision), entries)

    def write(self, key: str, value: bytes | None, revision: int | None = None) -> int:
        expected = "" if revision is None else str(revision)
        content = b"" if value is None else b":" + value
        new = int(self._run(_INDEXED + _WRITE, self._keys, key, expected, content))
        if not new:
            raise StateConflictError(f"'{key}' was changed by another writer; try again")
        return new

    def wait(self, prefix: str, after: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        # another revision, and not only a larger one: a fail-over may have gone back
        while not (changed := self._now() != after) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return changed

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        """A server that has not been here for as long as a lease lasts may have lost one, by a fail-over or a start without its
        data; until then it is not believed that a lease is free."""
        with self._lock:
            server, since = self._server
        believed = server if server and time.monotonic() - since >= seconds else b"-"
        took, answered = self._run(_ACQUIRE, [self._leases + name], holder, int(seconds * 1000), believed)
        if answered != server:
            with self._lock:
                self._server = (answered, time.monotonic())
        return bool(took)

    def release(self, name: str, holder: str) -> None:
        self._run(_RELEASE, [self._leases + name], holder)

    def close(self) -> None:
        self._redis.close()
        for sentinel in self._sentinel.sentinels if self._sentinel else ():
            sentinel.close()

    def _now(self) -> int:
        return int(self._run("return redis.call('GET', KEYS[1]) or '0'", self._keys[1:2]))

    def _run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        try:
            return self._redis.eval(script, len(keys), *keys, *arguments)
        except (redis.RedisError, OSError) as error:
            why = str(error) or type(error).__name__
            raise StateUnavailableError(
                f"--state redis: {self._where} does not answer as it should: {why}; see whether it runs and can be reached"
            ) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    return (host.strip("[]"), int(port)) if host else (text.strip(), 26379)
