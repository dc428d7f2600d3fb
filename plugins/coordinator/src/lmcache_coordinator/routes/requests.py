"""What the routes have in common: who asks, and how errors are answered."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from litestar import Request
from litestar.concurrency import sync_to_thread

from lmcache_client.errors import ProtocolError
from lmcache_coordinator.pins import TooManyPinsError
from lmcache_coordinator.registry import InstanceTakenError, TooManyInstancesError, UnknownInstanceError
from lmcache_core import parse_salt
from lmcache_fleet.messages import SECRET_HEADER
from lmcache_fleet.placements import TooManyOwnersError
from lmcache_fleet.state import CALL_SECONDS, StateConflictError, StateUnavailableError
from lmcache_http.access import client_names
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part
from lmcache_http.tokens import Scope

ASKS: Final = (Scope.READ, Scope.MEMBER)
"""Scopes for a POST that changes nothing."""
MEMBERS: Final = (Scope.MEMBER,)
ID: Final = {"instance_id": "The server's `--instance-id`."}
SALT: Final = {"cache_salt": "The cache salt; `_default` is the empty one."}
NO_STATE: Final = {503: "the state does not answer"}
UNKNOWN: Final = {404: "the instance is not registered"}
STATUS: Final = {
    UnknownInstanceError: HTTPStatus.NOT_FOUND,
    InstanceTakenError: HTTPStatus.FORBIDDEN,
    TooManyInstancesError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyOwnersError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyPinsError: HTTPStatus.UNPROCESSABLE_ENTITY,
    StateConflictError: HTTPStatus.SERVICE_UNAVAILABLE,
    StateUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    ProtocolError: HTTPStatus.UNPROCESSABLE_ENTITY,
}


STATE_CALLS: Final = 4
"""That may wait for the state at a time, on threads that all calls share: pages of members are taken in on the others."""


class StateCalls:
    """Calls that ask the state, and may wait for it for seconds each.  Of one event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(STATE_CALLS)

    async def call(self, function: Any, *arguments: Any) -> Any:
        """As `call`.  One that has waited for its turn for as long as a state may take is refused: its caller has given up."""
        try:
            await asyncio.wait_for(self._room.acquire(), CALL_SECONDS)
        except TimeoutError:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "other requests wait for the state that --state names; see whether it answers",
            ) from None
        try:
            return await call(function, *arguments)
        finally:
            self._room.release()


async def call(function: Any, *arguments: Any) -> Any:
    """On a thread; an error that callers can fix becomes a problem."""
    return await sync_to_thread(at_once, function, *arguments)


def at_once(function: Any, *arguments: Any) -> Any:
    """On this thread: what takes less time than another one would take to begin, and waits for nothing."""
    try:
        return function(*arguments)
    except tuple(STATUS) as error:
        raise ProblemError(STATUS[type(error)], str(error)) from None


class Callers:
    """Who may speak for an instance."""

    def __init__(self, binds_identity: bool) -> None:
        """`binds_identity`: the name in a client's certificate must be the instance's."""
        self._binds_identity = binds_identity

    def secret(self, request: Request[Any, Any, Any], instance_id: str | None = None) -> bytes | None:
        """The one that the request brings.  Raises ProblemError for one that is not hex, and where the client's certificate
        is not this instance's."""
        if instance_id is not None:
            self.check(request, instance_id)
        given = request.headers.get(SECRET_HEADER)
        if given is None:
            return None
        try:
            return bytes.fromhex(given)
        except ValueError:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{SECRET_HEADER}: expected hex digits") from None

    def check(self, request: Request[Any, Any, Any], instance_id: str) -> None:
        """Raises ProblemError."""
        if self._binds_identity and instance_id not in client_names(request):
            raise ProblemError(
                HTTPStatus.FORBIDDEN,
                f"with --tls-bind-identity only a client whose certificate has the name '{instance_id}' can do this",
            )


def salt_in_path(request: Request[Any, Any, Any]) -> str:
    return salt_of(path_part(request))


def salt_of(text: str) -> str:
    """Raises ProblemError."""
    try:
        return parse_salt(text)
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"cache_salt: {error}") from None
