"""The API's description: complete, valid, and with examples that are true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler
from pydantic import BaseModel

from lmcache_admin.api import api_about, every_core_route
from lmcache_http.access import operation_of
from lmcache_http.admin_api.paths import ADMIN_PATHS
from lmcache_http.application import described_routes
from lmcache_http.openapi import DescribedRoute, Operation, openapi_document
from lmcache_http.route_checks import paths_overlap
from plugins.admin.tests.conversation import ask, running

EVERY = every_core_route()


def handlers() -> list[HTTPRouteHandler]:
    return [handler for handler in EVERY if isinstance(handler, HTTPRouteHandler)]


def routes() -> list[DescribedRoute]:
    return described_routes(EVERY)


def operations() -> list[Operation]:
    return [route.operation for route in routes()]


def models() -> list[type[BaseModel]]:
    found = {model for about in operations() for model in (about.answers, about.body, *about.also.values()) if model}
    return sorted(found, key=lambda model: model.__name__)


def test_every_route_says_what_it_takes_and_answers() -> None:
    assert [handler.paths for handler in handlers() if not isinstance(operation_of(handler), Operation)] == []
    assert len(handlers()) == len(EVERY)


def test_a_handler_answers_with_the_status_that_it_says() -> None:
    wrong = [handler.paths for handler in handlers() if handler.status_code != operation_of(handler).status]
    assert wrong == []


def test_core_knows_its_paths_without_the_web_framework() -> None:
    described = openapi_document(api_about(), routes())["paths"]
    missing = [path for path in described if path not in ADMIN_PATHS]
    assert missing == [], "plugins' routes are held against admin/core_paths.py"
    assert [path for path in ADMIN_PATHS if path not in described] == []
    assert list(ADMIN_PATHS) == sorted(ADMIN_PATHS)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_model_has_an_example_that_it_takes(model: type[BaseModel]) -> None:
    examples = model.model_json_schema().get("examples")
    assert examples, f"{model.__name__}: say json_schema_extra={{'examples': [...]}}"
    for example in examples:
        model.model_validate(example, strict=True)


def test_every_parameter_of_a_path_is_explained() -> None:
    unexplained = [
        (route.path, each["name"])
        for route in routes()
        for each in openapi_document(api_about(), [route])["paths"]
        .popitem()[1][route.method.lower()]
        .get("parameters", [])
        if not each["description"]
    ]
    assert unexplained == []


def test_the_document_is_openapi() -> None:
    """By schemathesis' own reading; tests/http drives a server by it."""
    from schemathesis.openapi import from_dict

    document = openapi_document(api_about(), routes())
    loaded = from_dict(json.loads(json.dumps(document)))
    found: list[Any] = list(loaded.get_all_operations())
    identifiers = [operation.ok().definition.raw["operationId"] for operation in found]
    assert len(set(identifiers)) == len(identifiers) == len(routes())


def test_each_route_has_its_statuses() -> None:
    quota = openapi_document(api_about(), routes())["paths"]["/quota/{cache_salt}"]
    assert sorted(quota["put"]["responses"]) == sorted(
        ["200", "400", "401", "403", "408", "409", "413", "414", "421", "422", "431", "500", "503"]
    )
    assert quota["get"]["security"] == [{"token": []}]
    health = openapi_document(api_about(), routes())["paths"]["/healthcheck"]["get"]
    assert health["security"] == []
    assert "401" not in health["responses"]
    assert set(health["responses"]["503"]["content"]) == {"application/json", "application/problem+json"}


def test_the_server_says_it() -> None:
    with running("word") as server:
        assert ask(server, "/openapi.json").code == 401
        answer = ask(server, "/openapi.json", Authorization="Bearer word")
    assert (answer.code, answer.kind) == (200, "application/json")
    assert answer.body["openapi"] == "3.1.0"
    assert "/metrics" not in answer.body["paths"]


@pytest.mark.parametrize(
    ("one", "two", "do"),
    [
        ("/a", "/a", True),
        ("/a/{x}", "/a/b", True),
        ("/a/b", "/a/{y}", True),
        ("/a/{x}", "/a/{y}", True),
        ("/a", "/a/b", False),
        ("/a/b", "/a/c", False),
        ("/{x}", "/a", True),
    ],
)
def test_paths_that_overlap(one: str, two: str, do: bool) -> None:
    assert paths_overlap(one, two) is do
