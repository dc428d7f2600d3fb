"""What an owner writes into a backend, for other servers to read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from lmcache_core import ResourceError
from lmcache_object_remote.process_mark import ProcessMark

RECORD_BYTES_MAX: Final = 8192
LEASE_SECONDS_MIN: Final = 0.1
"""Shorter than the shortest setting: others look eight times in a lease, and must not do so without a pause."""
LEASE_SECONDS_MAX: Final = 3600.0
PID_MAX: Final = 2**22
_VERSION: Final = 1
_MARK: Final = "lmcache_owner"


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Who owns a backend.  Two records of one `claim` are of one adapter of one server; the higher `counter` is later."""

    instance_id: str
    boot_id: str
    claim: str
    shared: bool
    lease_seconds: float
    counter: int
    process: ProcessMark

    def pack(self) -> bytes:
        body = {_MARK: _VERSION, **asdict(self), "process": list(self.process)}
        return json.dumps({**body, "digest": _digest(body)}, sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes, place: str) -> Self | None:
        """None: a damaged record.  Raises ResourceError for what is none at all, or one of another version: it is not
        ours to replace, and we do not know how such a one is sealed."""
        body = _object(data)
        if body is None and _MARK.encode() in data and len(data) <= RECORD_BYTES_MAX:
            return None
        if body is None or _MARK not in body:
            raise ResourceError(
                f"{place}: the value of the owner's name is not an owner's record; "
                "remove it, or choose a prefix of its own for the cache"
            )
        version = body[_MARK]
        if type(version) is int and version != _VERSION:
            raise ResourceError(
                f"{place}: its owner's record is of another version ({version}, and not {_VERSION}); "
                "use servers of one version on one backend, and remove it where its owner is gone"
            )
        digest = body.pop("digest", None)
        if digest != _digest(body):
            return None
        del body[_MARK]
        try:
            record = cls(**{**body, "process": ProcessMark(*body["process"])})
        except (KeyError, TypeError):
            return None
        return record if record._is_sound() else None

    def describe(self) -> str:
        return f"server '{self.instance_id}' (boot {self.boot_id}, pid {self.process.pid} of its machine)"

    def _is_sound(self) -> bool:
        texts = (self.instance_id, self.boot_id, self.claim, self.process.machine)
        numbers = (self.counter, self.process.pid, self.process.started)
        return (
            all(isinstance(text, str) for text in texts)
            and all(type(number) is int for number in numbers)
            and isinstance(self.shared, bool)
            and 0 <= self.process.pid <= PID_MAX
            and isinstance(self.lease_seconds, float)
            and LEASE_SECONDS_MIN <= self.lease_seconds <= LEASE_SECONDS_MAX
        )


def _object(data: bytes) -> dict[str, Any] | None:
    if len(data) > RECORD_BYTES_MAX:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _digest(body: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
