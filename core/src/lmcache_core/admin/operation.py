"""What a route takes and answers, said once: for the checks in front of it, and for the API's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from lmcache_core.admin.schemas import QueryParameters

BODY_BYTES_MAX: Final = 64 * 1024
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, or of several that are the same under older names.

    What every route can answer with (401, 403, 413, 500, 503 and so on) is added where the description is written, and so
    are 400 and 422 where there is a body, a query or a path to get wrong: `refusals` has what is the route's own."""

    summary: str
    answers: type[BaseModel] | None = None
    """Of a JSON answer that is a success."""
    status: int = 200
    also: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    """Models of JSON answers with other statuses that are no problems, by status."""
    path: Mapping[str, str] = field(default_factory=dict)
    """What each `{name}` of the path is."""
    query: type[QueryParameters] | Mapping[str, str] | None = None
    """A model, or what each parameter is by its name.  Without one, a request with a query is refused."""
    body: type[BaseModel] | None = None
    """Without one, a request with a body is refused."""
    body_may_be_empty: bool = False
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Statuses of problems that are the route's own, and when."""
    media_type: str = JSON
    open: bool = False
    """Answered without a token, too."""
    tag: str = "server"
    """The heading that it stands under in the description."""
