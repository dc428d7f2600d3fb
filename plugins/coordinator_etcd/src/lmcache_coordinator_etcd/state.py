"""A coordinator's state in etcd, by the JSON gateway that etcd 3.4 and later has on its client port.

Not by gRPC: no client of etcd for Python is maintained, and the gateway needs only an HTTP client.
"""

from __future__ import annotations

import json
import logging
import math
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx
from pydantic import Field, field_validator

from lmcache_client.errors import ResourceError
from lmcache_core import PluginSettings
from lmcache_fleet.state import (
    CALL_SECONDS,
    CoordinatorState,
    Reading,
    StateConflictError,
    StateUnavailableError,
    Versioned,
)

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 4.0
"""For one request to one endpoint."""
TOTAL_SECONDS: Final = CALL_SECONDS - 1.0
_PAGE: Final = 1000

logging.getLogger(httpx.__name__).setLevel(logging.WARNING)  # it logs each request otherwise, several in each second


class EtcdSettings(PluginSettings):
    address: str = Field(min_length=1, description="Client URLs of the cluster's members, with commas between them.")
    prefix: str = Field("lmcache/", min_length=1, description="Begins every key; one fleet has one.")
    ca: str | None = Field(None, min_length=1, description="File with the authority of the members' certificates.")
    cert: str | None = Field(None, min_length=1, description="File with this client's certificate.")
    key: str | None = Field(None, min_length=1, description="File with its key.")

    @field_validator("address")
    @classmethod
    def _urls(cls, value: str) -> str:
        for url in value.split(","):
            if not url.strip().startswith(("http://", "https://")):
                raise ValueError("expected URLs such as http://10.0.0.1:2379,http://10.0.0.2:2379")
        return value

    @property
    def urls(self) -> list[str]:
        return [url.strip().rstrip("/") for url in self.address.split(",")]


class _Lease(NamedTuple):
    holder: str
    number: str


def open_etcd(settings: EtcdSettings) -> CoordinatorState:
    return EtcdState(settings)


class EtcdState(CoordinatorState):
    """Asks the members in turn, beginning with the one that answered last.  A request that may have been carried out is not
    sent to another one, unless it changes nothing."""

    shared = True

    def __init__(self, settings: EtcdSettings) -> None:
        """Raises ResourceError for files that cannot be read.  Connects later."""
        self._urls: Final = settings.urls
        self._root: Final = settings.prefix.encode()
        self._prefix: Final = self._root + b"state/"
        self._first = 0
        try:
            cert = (settings.cert, settings.key) if settings.cert and settings.key else settings.cert
            self._http = httpx.Client(
                verify=httpx.create_ssl_context(verify=settings.ca or True, cert=cert, trust_env=False),
                trust_env=False,
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            )
        except (OSError, ValueError) as error:
            raise ResourceError(
                f"--state etcd: a certificate or key cannot be read: {error}; see ca, cert and key"
            ) from None

    def read(self, prefix: str) -> Reading:
        entries: dict[str, Versioned] = {}
        start, end, revision = self._key(prefix), _after(self._key(prefix)), 0
        more = True
        while more:
            ask = {"key": _text(start), "range_end": _text(end), "limit": _PAGE, "revision": revision}
            answer = self._ask("/v3/kv/range", ask, repeatable=True)
            # the other pages are of the same moment
            revision = revision or int(answer["header"]["revision"])
            for each in answer.get("kvs", ()):
                key, value = b64decode(each["key"]), b64decode(each.get("value", ""))
                entries[key[len(self._prefix) :].decode()] = Versioned(value, int(each["mod_revision"]))
                start = key + b"\0"
            more = bool(answer.get("more"))
        return Reading(revision, entries)

    def write(self, key: str, value: bytes | None, revision: int | None = None) -> int:
        name = _text(self._key(key))
        change: Mapping[str, Any] = (
            {"request_delete_range": {"key": name}}
            if value is None
            else {"request_put": {"key": name, "value": _text(value)}}
        )
        compare = [] if revision is None else [{"key": name, "target": "MOD", "mod_revision": revision}]
        answer = self._ask("/v3/kv/txn", {"compare": compare, "success": [change]})
        if not answer.get("succeeded"):
            raise StateConflictError(f"'{key}' was changed by another writer; try again")
        return int(answer["header"]["revision"])

    def wait(self, prefix: str, after: int, seconds: float) -> bool:
        key = self._key(prefix)
        watch = {"key": _text(key), "range_end": _text(_after(key)), "start_revision": after + 1}
        until = time.monotonic() + seconds
        url = self._urls[self._first % len(self._urls)]
        now: int | None = None
        """Etcd's revision, where it has said it."""
        try:
            with self._http.stream(
                "POST",
                f"{url}/v3/watch",
                json={"create_request": watch},
                timeout=httpx.Timeout(max(0.1, seconds), connect=CONNECT_SECONDS),
            ) as answer:
                for line in answer.iter_lines():
                    said = json.loads(line).get("result", {})
                    now = int(said.get("header", {}).get("revision", 0))
                    # canceled: the changes since then are not kept any more
                    if said.get("events") or said.get("canceled"):
                        return True
                    if time.monotonic() > until:
                        return now != after  # the first line comes before changes that were made earlier
            raise StateUnavailableError(f"--state etcd: {url} ended a watch; see whether it runs")
        except httpx.ReadTimeout:
            return now != after  # another one, and not only a larger one: its data may have been lost
        except (httpx.HTTPError, ValueError) as error:
            self._first += 1
            raise _unavailable(url, error) from None

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        until = time.monotonic() + TOTAL_SECONDS
        found = self._lease(name, until)
        if found is not None:
            if found.holder != holder:
                return False
            alive = self._ask("/v3/lease/keepalive", {"ID": found.number}, until=until).get("result", {})
            return int(alive.get("TTL", 0)) > 0
        number = self._ask("/v3/lease/grant", {"TTL": math.ceil(seconds)}, until=until)["ID"]
        key = _text(self._lease_key(name))
        put = {"key": key, "value": _text(holder.encode()), "lease": number}
        is_free = {"key": key, "target": "CREATE", "create_revision": 0}
        took = self._ask("/v3/kv/txn", {"compare": [is_free], "success": [{"request_put": put}]}, until=until)
        return bool(took.get("succeeded"))  # where it was not taken, what was granted ends by itself

    def release(self, name: str, holder: str) -> None:
        until = time.monotonic() + TOTAL_SECONDS
        found = self._lease(name, until)
        if found is not None and found.holder == holder:
            self._ask("/v3/lease/revoke", {"ID": found.number}, until=until)

    def _lease(self, name: str, until: float) -> _Lease | None:
        answer = self._ask("/v3/kv/range", {"key": _text(self._lease_key(name))}, repeatable=True, until=until)
        for each in answer.get("kvs", ()):
            return _Lease(b64decode(each["value"]).decode(), each.get("lease", "0"))
        return None

    def close(self) -> None:
        self._http.close()

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _lease_key(self, name: str) -> bytes:
        return self._root + b"lease/" + name.encode()

    def _ask(self, path: str, body: Mapping[str, Any], *, repeatable: bool = False, until: float = math.inf) -> Any:
        """`repeatable`: it changes nothing.  `until`: by the monotonic clock."""
        until = min(until, time.monotonic() + TOTAL_SECONDS)
        fault = StateUnavailableError("--state etcd: no member could be asked in time")
        for _ in range(2 * len(self._urls)):
            left = until - time.monotonic()
            if left <= 0:
                break
            first = self._first
            url = self._urls[first % len(self._urls)]
            timeout = httpx.Timeout(min(left, ANSWER_SECONDS), connect=min(left, CONNECT_SECONDS))
            try:
                answer = self._http.post(url + path, json=body, timeout=timeout)
                if answer.status_code == httpx.codes.OK:
                    return answer.json()
                fault = _unavailable(url, f"status {answer.status_code}: {answer.text[:200]}")
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                self._first = first + 1
                fault = _unavailable(url, error)
                continue  # it was not sent
            except (httpx.HTTPError, ValueError) as error:
                fault = _unavailable(url, error)
            self._first = first + 1
            if not repeatable:
                break
        raise fault


def _unavailable(url: str, error: object) -> StateUnavailableError:
    why = str(error) or type(error).__name__
    return StateUnavailableError(
        f"--state etcd: {url} does not answer as it should: {why}; see whether the cluster has a majority and can be reached"
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with the prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,))
