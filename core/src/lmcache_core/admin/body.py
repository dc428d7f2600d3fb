"""Bodies of requests, checked."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from litestar import Request
from pydantic import BaseModel, ValidationError

from lmcache_core.admin.problem import ProblemError
from lmcache_core.contracts.settings import explain

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request[Any, Any, Any], model: type[Body], *, may_be_empty: bool = False) -> Body:
    """The body as `model`.  Raises ProblemError, 400 for what is no JSON and 422 for what is not allowed in it."""
    data = await request.body()
    if not data and may_be_empty:
        return model()
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        fields = ", ".join(model.model_fields)
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"the body is no JSON object; its fields are: {fields}")
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, explain(error, model)) from None
