"""A route that a plugin adds to the admin HTTP API, independent of its web framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber

if TYPE_CHECKING:
    from pydantic import BaseModel

    from lmcache_core.contracts.service import Service


class HttpRequest(msgspec.Struct, frozen=True):
    """What was asked.  Its size is within the limits of the admin API, and it was authenticated unless its route is open."""

    path: Mapping[str, str]
    """By the names in the route's path, decoded."""
    query: Mapping[str, str]
    """Decoded.  A request that gives a name twice is refused."""
    headers: Mapping[str, str]
    """By lower-case name; without `authorization` and `cookie`."""
    body: bytes


class HttpAnswer(msgspec.Struct, frozen=True):
    """`body` is sent as it is when it is bytes, encoded when it is text, and as JSON otherwise: a pydantic model, or whatever
    JSON has words for."""

    body: Any
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One method of one path.  `answer` is called on a thread of a pool and may take locks; what it raises is answered with
    500 and logged, a `HttpRefusal` with what it says."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """Absolute, with `{name}` for one part and no slash at the end; none that core or another plugin has."""
    answer: Callable[[HttpRequest], HttpAnswer]
    summary: str
    """One line for the API's description."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameters by name, with what each is for.  A request with others is refused."""
    body: type[BaseModel] | None = None
    """What a body must be; without one, a request with a body is refused.  Checked before `answer` is called."""
    answers: type[BaseModel] | None = None
    """The model of a JSON answer, for the API's description."""
    media_type: str = "application/json"
    """Of the answer, for the API's description."""
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Statuses other than 200 that it answers with, and when."""
    open: bool = False
    """True: answered without the token, too.  For pages and pictures without data in them."""


class HttpRefusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """Raised by a route: answered as a problem with this status (one of its `refusals`) and detail, which names the field,
    the limit and the remedy."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class HttpContext(Protocol):
    """The server, as far as a plugin's routes may see it."""

    @property
    def server(self) -> ServerView: ...

    def subscriber(self, name: str) -> Subscriber | None:
        """The subscriber of this name, with which routes share what it gathered; None where it is not active."""

    def service(self, name: str) -> Service | None:
        """The service of this name, for answers of routes that belong to it; None where it is not open (yet)."""


class PluginRoute(msgspec.Struct, frozen=True):
    """A route with its owner."""

    plugin: str
    offer: str
    route: HttpRoute
    owner: str = ""
    """Its distribution and version, for messages."""


RouteCheck = Callable[[PluginRoute, Sequence[PluginRoute]], str | None]
"""What is wrong with a route beside those that were accepted before it, in words; None for a right one."""
