"""What each route takes and answers, and the API's description from that: an OpenAPI 3.1 document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lmcache_http.models import QueryParameters
from lmcache_http.tokens import Scope

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
    """Models of JSON answers with other statuses that are not problems, by status."""
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
    scopes: Sequence[Scope] | None = None
    """Of tokens that may ask it, beside `full`.  None: `read` where the method is GET."""
    body_media_type: str = JSON
    """Of a body that is not JSON, there is no model: `body_description` says what it is."""
    body_description: str = ""
    direct: bool = False
    """Asked very often: answered in front of the web framework (`lmcache_http.direct`)."""
    tag: str = "server"
    """Its heading in the description."""

    @property
    def has_body(self) -> bool:
        return self.body is not None or self.body_media_type != JSON


PROBLEM: Final = "application/problem+json"
_PROBLEM_SCHEMA: Final = {
    "title": "Problem",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
    "examples": [{"type": "about:blank", "title": "Not Found", "status": 404, "detail": "Not Found"}],
}
_EVERYWHERE: Final = {
    408: "the request did not come in time",
    413: "the body is too large",
    414: "path and query are too long",
    421: "without tokens, the server was called by a name that is none of this machine's",
    431: "there are too many headers",
    500: "the server failed; its log says why",
    503: "too many requests at once",
}
_WITH_TOKENS: Final = {
    401: "a token is needed",
    403: "the token's scope is not for this, or a page of another site asks",
}
_WITH_VALUES: Final = {422: "a value is not allowed"}
_WITH_BODY: Final = {400: "the body is not JSON"}
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")


@dataclass(frozen=True, slots=True)
class DescribedRoute:
    """`path` with `{name}` for a parameter."""

    method: str
    path: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class ApiAbout:
    """The head of a description."""

    title: str
    version: str
    description: str


def openapi_document(about: ApiAbout, routes: Iterable[DescribedRoute]) -> dict[str, Any]:
    """For JSON.  Routes come out sorted by path and method."""
    routes = sorted(routes, key=lambda route: (route.path, route.method))
    names, schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _described(route, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": about.title,
            "version": about.version,
            "description": about.description,
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM_SCHEMA, **schemas},
            "responses": {_shared(status): _problem(when) for status, when in {**_WITH_TOKENS, **_EVERYWHERE}.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_Names = Mapping[Any, Mapping[str, Any]]
"""For each model, read or written, the reference to its schema."""


def _schemas(routes: Iterable[DescribedRoute]) -> tuple[_Names, dict[str, Any]]:
    models: dict[tuple[type[BaseModel], Any], None] = {}
    for route in routes:
        about = route.operation
        if about.body:
            models[about.body, "validation"] = None
        for model in (about.answers, *about.also.values()):
            if model:
                models[model, "serialization"] = None
    names, document = models_json_schema(list(models), ref_template="#/components/schemas/{model}")
    return names, document.get("$defs", {})


def _described(route: DescribedRoute, names: _Names) -> dict[str, Any]:
    about = route.operation
    described: dict[str, Any] = {
        "operationId": _identifier(route),
        "summary": about.summary.rstrip("."),
        "tags": [about.tag],
        "security": [] if about.open else [{"token": []}],
        "parameters": [*_path_parameters(route), *_query_parameters(about)],
        "responses": _responses(route, names),
    }
    if about.body:
        described["requestBody"] = {
            "required": not about.body_may_be_empty,
            "content": {JSON: {"schema": names[about.body, "validation"]}},
        }
    elif about.has_body:
        described["requestBody"] = {
            "required": not about.body_may_be_empty,
            "description": about.body_description,
            "content": {about.body_media_type: {"schema": {"type": "string", "format": "binary"}}},
        }
    return {name: value for name, value in described.items() if value != []} | {"security": described["security"]}


def _identifier(route: DescribedRoute) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _PARAMETER.sub(r"by \1", route.path))
    return "_".join([route.method.lower(), *words]) if words else f"{route.method.lower()}_root"


def _path_parameters(route: DescribedRoute) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": route.operation.path.get(name, ""),
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(about: Operation) -> list[dict[str, Any]]:
    if about.query is None:
        return []
    if isinstance(about.query, Mapping):
        return [
            {"name": name, "in": "query", "required": False, "description": what, "schema": {"type": "string"}}
            for name, what in about.query.items()
        ]
    schema = about.query.model_json_schema()
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": each.pop("description", ""),
            "schema": _given(each),
        }
        for name, each in schema.get("properties", {}).items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Without null, which a query cannot say: leaving the parameter out says that."""
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default", "title")}
    default = {} if schema.get("default") is None else {"default": schema["default"]}
    if not options:
        return kept | default
    return kept | default | (options[0] if len(options) == 1 else {"anyOf": options})


def _responses(route: DescribedRoute, names: _Names) -> dict[str, Any]:
    about = route.operation
    content: dict[str, Any] = {about.media_type: {}}
    if about.answers:
        content = {about.media_type: {"schema": names[about.answers, "serialization"]}}
    has_content = about.status != HTTPStatus.NO_CONTENT
    responses: dict[int, Any] = {
        about.status: {"description": "Success", **({"content": content} if has_content else {})}
    }
    for status, model in about.also.items():
        responses[status] = {
            "description": "Another answer",
            "content": {JSON: {"schema": names[model, "serialization"]}},
        }
    has_values = bool(about.has_body or about.query or "{" in route.path)
    own = {
        **(_WITH_BODY if about.body else {}),
        **(_WITH_VALUES if has_values else {422: "the route takes neither query nor body"}),
        **about.refusals,
    }
    for status in {**({} if about.open else _WITH_TOKENS), **_EVERYWHERE}:
        if status not in own and status not in responses:
            responses[status] = {"$ref": f"#/components/responses/{_shared(status)}"}
        elif status in responses:
            responses[status]["content"] |= _problem("")["content"]
    for status, when in own.items():
        responses[status] = _problem(when)
    return {str(status): responses[status] for status in sorted(responses)}


def _shared(status: int) -> str:
    return f"Problem{status}"


def _problem(when: str) -> dict[str, Any]:
    return {"description": when, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
