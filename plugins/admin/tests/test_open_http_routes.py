"""Routes of plugins are held against the contract, core's paths and each other's when a server is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from core.tests.app.test_build import built
from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.contracts.http_route import HttpAnswer, HttpRequest, HttpRoute
from lmcache_core.model.errors import PluginContractError
from lmcache_devkit import free_port
from lmcache_http.route_checks import fault_of_route

Install = Callable[..., Path]

ROUTES = """
    from lmcache_core import HttpAnswer, HttpRoute, Offer, PluginSettings, hookimpl

    class Settings(PluginSettings):
        path: str = "/{name}"

    def open_routes(settings, context):
        if settings.path == "nothing":
            return None
        if settings.path == "broken":
            raise RuntimeError("no luck")
        return [HttpRoute("GET", settings.path, lambda request: HttpAnswer({{}}), "For tests.")]

    @hookimpl
    def lmcache_http_routes():
        return [Offer("{name}", "for tests", "{name}_plugin:open_routes", "{name}_plugin:Settings", default={default})]
    """


def put(install: Install, name: str, *, path: str | None = None, default: bool = True) -> None:
    source = ROUTES.format(name=name, default=default)
    install(name, source if path is None else source.replace(f'"/{name}"', f'"{path}"'))


def answered(**settings: Any) -> list[str]:
    with built(http_enabled=True, http_port=free_port(), **settings) as server:
        return [
            f"{each['method']} {each['path']}"
            for each in server.status()["services"]["admin"]["http_routes"]
            if "acme" in each["plugin"]
        ]


def test_those_by_default_are_there_and_others_when_they_are_named(install: Install) -> None:
    put(install, "acme")
    put(install, "acme_more", default=False)
    assert answered() == ["GET /acme"]
    asked = {"http_routes:acme_more": {"path": "/acme/{x}/more"}}
    assert sorted(answered(offer_settings=asked)) == ["GET /acme", "GET /acme/{x}/more"]


def test_routes_that_ask_for_the_server_while_they_are_opened_get_the_remedy(install: Install) -> None:
    """There is no server yet."""
    source = ROUTES.format(name="acme", default=False).replace('raise RuntimeError("no luck")', "context.server.info")
    install("acme", source)
    with pytest.raises(LMCacheError, match=r"context\.server was read while .*; read it in .* a route's answer"):
        answered(offer_settings={"http_routes:acme": {"path": "broken"}})


def test_without_the_api_none_is_opened(install: Install) -> None:
    put(install, "acme", path="broken")
    with built(http_enabled=False) as server:
        assert "admin" not in server.status()["services"]
        assert [row["status"] for row in server.status()["plugins"] if row["name"] == "acme"] == ["active"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/status", "GET /status is answered by lmcache-admin, too; choose another path"),
        ("/quota/{salt}", "GET /quota/{salt} is answered by lmcache-admin, too"),
        ("/{anything}", "GET /{anything} is answered by lmcache-admin, too"),
        ("acme", "a path is such as /acme/things/{name}"),
        ("nothing", "open as NoneType, which is not a list of HttpRoute"),
        ("broken", "cannot be opened: RuntimeError: no luck"),
    ],
)
def test_what_fails_is_set_aside_unless_it_was_requested(
    install: Install, path: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(install, "acme", path=path)
    assert answered() == []
    assert "HTTP routes 'acme' (acme-dist 1.0)" in caplog.text
    assert says in caplog.text
    with pytest.raises(LMCacheError) as failed:
        answered(offer_settings={"http_routes:acme": {}})
    assert says in str(failed.value)


def test_of_two_that_want_one_path_both_are_named(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    put(install, "acme", path="/both/{a}")
    put(install, "acme_two", path="/both/{b}")
    assert len(answered()) == 1
    assert (
        "HTTP routes 'acme_two' (acme_two-dist 1.0): GET /both/{b} is answered by HTTP routes 'acme' (acme-dist 1.0), too"
        in (caplog.text)
    )
    # the requested plugin has it, whatever their order
    with built(http_enabled=True, http_port=free_port(), offer_settings={"http_routes:acme_two": {}}) as server:
        owners = {each["offer"] for each in server.status()["services"]["admin"]["http_routes"]}
    assert "acme_two" in owners
    assert "acme" not in owners


def test_wrong_settings_are_named(install: Install) -> None:
    put(install, "acme")
    with pytest.raises(
        ConfigError, match=r"--offer-settings http_routes:acme: no field is called 'pth'; did you mean 'path'"
    ):
        answered(offer_settings={"http_routes:acme": {"pth": "/x"}})


class Body(BaseModel):
    a: int


def answer(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer({})


RIGHT = HttpRoute("POST", "/acme/{name}", answer, "Does.", {"a": "what"}, Body, Body, refusals={409: "never"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "PATCH"}, "the method is none of GET, POST, PUT, DELETE"),
        ({"path": "acme"}, "a path is such as"),
        ({"path": "/acme/"}, "a path is such as"),
        ({"path": "/acme//x"}, "a path is such as"),
        ({"path": "/a b"}, "a path is such as"),
        ({"path": "/acme/{name:int}"}, "a path is such as"),
        ({"path": "/acme/x{name}"}, "a path is such as"),
        ({"path": 5}, "a path is such as"),
        ({"path": "/{a}/{a}"}, "two parts of the path have one name"),
        ({"answer": 5}, "answer is not a function"),
        ({"summary": "two\nlines"}, "summary is not a line of text"),
        ({"summary": "x" * 300}, "summary is not a line of text of at most 200 characters"),
        ({"query": {"a": 5}}, "query is not a mapping of names to lines of text"),
        ({"body": dict}, "body is <class 'dict'>, which is not a pydantic model"),
        ({"answers": "Body"}, "answers is 'Body', which is not a pydantic model"),
        ({"method": "GET"}, "a GET has no body"),
        ({"refusals": {200: "fine"}}, "refusals is not a mapping of statuses from 400 to 599"),
        ({"media_type": "json"}, "media_type is 'json'"),
        ({"open": True}, "only a GET may be open"),
    ],
)
def test_faults_of_a_declaration(change: dict[str, Any], says: str) -> None:
    assert fault_of_route(RIGHT) is None
    fault = fault_of_route(replace(RIGHT, **change))
    assert fault is not None
    assert says in fault


def test_what_is_not_a_route_at_all() -> None:
    assert fault_of_route({"path": "/x"}) == "it has dict where HttpRoute belongs"
    assert issubclass(PluginContractError, LMCacheError)
