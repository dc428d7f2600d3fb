"""What Mooncake answers for one object: numbers below zero that are errors, and what they mean here."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from lmcache_core import LMCacheError, Outcome


class Code(IntEnum):
    """Those that this adapter tells apart."""

    OK = 0
    INTERNAL_ERROR = -1
    BUFFER_OVERFLOW = -10
    CLIENT_NOT_FOUND = -103
    NO_AVAILABLE_HANDLE = -200
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    LEASE_EXPIRED = -707
    OBJECT_HAS_REPLICATION_TASK = -708
    REPLICA_NOT_FOUND = -710
    REPLICA_IS_GONE = -712
    TRANSFER_FAIL = -800
    RPC_FAIL = -900
    RPC_TIMEOUT = -901


class MooncakeError(LMCacheError):
    """An answer that a healthy store does not give."""


class PassingError(MooncakeError):
    """One that another attempt may not meet."""


LOST: Final = frozenset({Code.RPC_FAIL, Code.RPC_TIMEOUT, Code.CLIENT_NOT_FOUND, Code.ILLEGAL_CLIENT})
"""The master does not answer, or does not know this client."""

_STORED: Final = {
    Code.OK: Outcome.DONE,
    Code.OBJECT_ALREADY_EXISTS: Outcome.DONE,
    Code.NO_AVAILABLE_HANDLE: Outcome.REJECTED,
    Code.BUFFER_OVERFLOW: Outcome.REJECTED,
}
_LOADED: Final = {
    Code.OBJECT_NOT_FOUND: Outcome.MISSING,
    Code.REPLICA_IS_NOT_READY: Outcome.MISSING,  # it is still being stored
    Code.REPLICA_NOT_FOUND: Outcome.MISSING,
    Code.REPLICA_IS_GONE: Outcome.MISSING,
}
_DELETED: Final = {
    Code.OK: Outcome.DONE,
    Code.OBJECT_NOT_FOUND: Outcome.MISSING,
    Code.OBJECT_HAS_LEASE: Outcome.REJECTED,
    Code.OBJECT_HAS_REPLICATION_TASK: Outcome.REJECTED,
    Code.REPLICA_IS_NOT_READY: Outcome.REJECTED,
}
_PASSING: Final = frozenset({Code.LEASE_EXPIRED})
"""The bytes may have been given to another object while they were read."""


def stored(code: int) -> Outcome:
    """Raises MooncakeError."""
    return _outcome(_STORED, code, "storing an object")


def not_loaded(code: int) -> Outcome:
    """Of an answer that is not a length.  Raises MooncakeError."""
    return _outcome(_LOADED, code, "loading an object")


def deleted(code: int) -> Outcome:
    """Raises MooncakeError."""
    return _outcome(_DELETED, code, "deleting an object")


def error_of(code: int, what: str) -> MooncakeError:
    """The error for an answer that is not an outcome."""
    kind = PassingError if code in _PASSING else MooncakeError
    return kind(f"{what}: Mooncake answered {name_of(code)}{_remedy(code)}")


def name_of(code: int) -> str:
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"error {code}"


def _outcome(table: dict[Code, Outcome], code: int, what: str) -> Outcome:
    try:
        return table[Code(code)]
    except (ValueError, KeyError):
        raise error_of(code, what) from None


def _remedy(code: int) -> str:
    if code in LOST:
        return "; check that mooncake_master is running and reachable"
    if code == Code.LEASE_EXPIRED:
        return "; where it happens often, raise the master's --default_kv_lease_ttl"
    if code == Code.TRANSFER_FAIL:
        return "; the member that holds the object did not answer"
    return ""
