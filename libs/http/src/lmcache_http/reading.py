"""Bodies, queries and parts of the path of a request, decoded strictly and checked."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar import Request
from pydantic import BaseModel, ValidationError

from lmcache_core import explain
from lmcache_http.models import QueryParameters
from lmcache_http.problem import ProblemError

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request[Any, Any, Any], model: type[Body], *, may_be_empty: bool = False) -> Body:
    """The body as `model`.  Raises ProblemError, 400 for what is not JSON and 422 for what is not allowed in it."""
    data = await request.body()
    if not data and may_be_empty:
        return model()
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        fields = ", ".join(model.model_fields)
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"the body is not a JSON object; its fields are: {fields}")
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, explain(error, model)) from None


Query = TypeVar("Query", bound=QueryParameters)

NAMES_MAX: Final = 64
"""Parameters in one query."""


def read_query(request: Request[Any, Any, Any], model: type[Query]) -> Query:
    """The query as `model`.  Raises ProblemError, 422, for what is unknown, given twice, not UTF-8 or not allowed."""
    try:
        return model.model_validate(query_values(request.scope["query_string"]))
    except ValidationError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"query: {explain(error, model)}") from None


def query_values(query: bytes) -> dict[str, str]:
    """Each name with its value.  Raises ProblemError, 422."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=NAMES_MAX,
        )
    except UnicodeDecodeError:
        raise _refused("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise _refused(f"the query is not a list of at most {NAMES_MAX} parameters such as a=1&b=2") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _refused(f"query: '{twice}' is given twice; give it once")
    return values


def path_part(request: Request[Any, Any, Any], index: int = -1) -> str:
    """One part of the path, counted as in a list, decoded.  Raises ProblemError, 422, for bytes that are not UTF-8.

    Decoded here, because routing works on a path in which such bytes are replaced already."""
    parts = bytes(request.scope["raw_path"]).split(b"/")
    try:
        return unquote(parts[index].decode("latin-1"), errors="strict")
    except UnicodeDecodeError:
        raise _refused("the path is not percent-encoded UTF-8") from None


def _refused(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
