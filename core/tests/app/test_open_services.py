"""Services of plugins: opened after the engine port, started when it answers, closed before it is; a fault of one stops the
start only if the configuration asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.tests.app.test_build import built
from lmcache_client.errors import LMCacheError
from lmcache_core.model.errors import PluginContractError, PluginLoadError

Install = Callable[..., Path]

SERVICE = """
    import threading
    from lmcache_core import Condition, Offer, PluginSettings, Service, Severity, hookimpl

    CALLS = []

    class Settings(PluginSettings):
        fault: str = "{fault}"
        endpoint: str = "{name}"

    class Watch(Service):
        def __init__(self, settings, context):
            self.fault, self.context, self.ended = settings.fault, context, threading.Event()
            self.endpoint = settings.endpoint
            if self.fault == "open":
                raise RuntimeError("no luck")
            if self.fault == "server":
                context.server.info

        @property
        def endpoints(self):
            if self.fault == "endpoints":
                raise RuntimeError("no luck")
            return {{self.endpoint: "tcp://{name}"}}

        def start(self, server):
            CALLS.append(("start", dict(server.endpoints)))
            if self.fault == "start":
                raise RuntimeError("no luck")

        def threads(self):
            return {{"look": self.look}}

        def look(self):
            if self.fault == "thread" and not self.ended.is_set():
                self.fault = ""
                raise RuntimeError("no luck")
            self.ended.wait()

        def stop(self, seconds):
            CALLS.append(("stop", seconds))
            if self.fault == "stop":
                raise RuntimeError("no luck")

        def close(self):
            self.ended.set()
            CALLS.append(("close", "{name}"))
            if self.fault == "close":
                raise RuntimeError("no luck")

        def status(self):
            if self.fault == "status":
                raise RuntimeError("no luck")
            return {{"instance": self.context.server.info.instance_id}}

        def conditions(self):
            return [Condition("acme_ill", Severity.CRITICAL, "it is ill", "give it a rest")] if self.fault == "ill" else []

    def open_nothing(settings, context):
        return None

    @hookimpl
    def lmcache_services():
        opener = "{name}_plugin:" + ("open_nothing" if {nothing} else "Watch")
        return [Offer("{name}", "for tests", opener, "{name}_plugin:Settings", default={default})]
    """


def put(install: Install, name: str = "acme", *, default: bool = True, nothing: bool = False, fault: str = "") -> None:
    install(name, SERVICE.format(name=name, default=default, nothing=nothing, fault=fault))


def calls(name: str = "acme") -> list[Any]:
    module = __import__(f"{name}_plugin")
    found: list[Any] = module.CALLS
    return found


def asked(fault: str = "", name: str = "acme", **more: str) -> dict[str, Any]:
    return {"offer_settings": {f"service:{name}": {"fault": fault, **more}}}


def test_one_by_default_lives_as_long_as_the_server(install: Install) -> None:
    put(install)
    with built(instance_id="node-7") as server:
        assert calls() == [("start", {"acme": "tcp://acme"})]
        assert server.status()["services"]["acme"] == {"instance": "node-7"}
        assert server.status()["threads"]["acme-look"]["running"]
        assert server.info.endpoints["acme"] == "tcp://acme"
        server.stop(5.0)
    assert calls()[1:] == [("stop", 5.0), ("close", "acme")]


def test_one_that_is_not_by_default_is_opened_when_its_settings_are_given(install: Install) -> None:
    put(install, default=False)
    with built() as server:
        assert "acme" not in server.status()["services"]
    with built(**asked()) as server:
        assert "acme" in server.status()["services"]


@pytest.mark.parametrize("fault", ["open", "endpoints", "server", "start"])
def test_what_cannot_be_opened_or_started_stops_the_start_if_it_was_asked_for(install: Install, fault: str) -> None:
    put(install, fault=fault)
    why = "no luck" if fault != "server" else "read it in start"
    with pytest.raises(LMCacheError, match=why), built(**asked(fault)):
        pass
    with built() as server:
        assert "acme" not in server.status()["services"]
        (row,) = [row for row in server.status()["plugins"] if row["name"] == "acme"]
        assert row["status"] == "broken"
        assert why in row["error"]


def test_what_is_not_a_service_is_refused(install: Install) -> None:
    put(install, nothing=True)
    with (
        pytest.raises(PluginContractError, match=r"service 'acme' \(.*\) opens as NoneType, not as Service"),
        built(**asked()),
    ):
        pass


def test_what_does_not_start_says_so_and_is_closed(install: Install) -> None:
    put(install, fault="start")
    says = r"service 'acme' \(.*\) does not start: RuntimeError: no luck"
    with pytest.raises(PluginLoadError, match=says), built(**asked("start")):
        pass
    assert calls()[-1] == ("close", "acme")


def test_two_with_one_endpoint_are_refused(install: Install) -> None:
    put(install)
    put(install, "other", default=False)
    with (
        pytest.raises(
            PluginContractError, match=r"service 'other' \(.*\): another service has an endpoint 'acme' already"
        ),
        built(**asked(name="other", endpoint="acme")),
    ):
        pass
    assert calls("other") == [("close", "other")]
    assert calls() == [("close", "acme")]


@pytest.mark.parametrize("fault", ["stop", "close", "status"])
def test_a_fault_of_one_does_not_stop_the_others(install: Install, fault: str) -> None:
    put(install)
    put(install, "other")
    with built(**asked(fault)) as server:
        if fault == "status":
            assert server.status()["services"]["acme"] == {"error": "RuntimeError: no luck"}
        assert server.stop(5.0)
    assert calls("other")[1:] == [("stop", 5.0), ("close", "other")]


def test_its_threads_are_supervised_and_its_conditions_shown(install: Install) -> None:
    put(install)
    put(install, "other")
    settings = {**asked("thread")["offer_settings"], **asked("ill", "other")["offer_settings"]}
    with built(offer_settings=settings) as server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            reported = [each.condition for each in server.conditions()]
            restarts = server.status()["threads"]["acme-look"]["restarts"]
            if restarts and any(each.name == "acme_ill" for each in reported):
                break
            time.sleep(0.02)
        assert restarts == 1
        (ill,) = [each for each in reported if each.name == "acme_ill"]
        # a service is not on the request's path: the server is degraded, not unhealthy
        assert (ill.subject, ill.severity.value) == ("service other", "warning")


def test_what_it_sees_of_the_configuration(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER_TOKEN", "PLANTED-1")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:PLANTED-2@proxy:1")
    monkeypatch.setenv("LMCACHE_UNKNOWN_HERE", "PLANTED-3")
    put(install)
    adapter = {"type": "memory", "max_size_gb": 1}
    with built(chunk_size=32, l2_adapter=(adapter,)) as server:
        context = server._parts.services.opened()["acme"].context  # type: ignore[attr-defined]
        assert context.configuration()["chunk_size"] == 32
        assert context.value_at("chunk_size") == 32
        assert context.value_at("l2_adapter.0.type") == "memory"
        for place in ("", "nothing", "l2_adapter.7", "l2_adapter.0.type.0", "model_fields", "l2_adapter.-1"):
            assert context.value_at(place) is None, place
        environment = context.environment()
        assert "PATH" in environment
        assert not [name for name in environment if name.startswith("LMCACHE_") or "TOKEN" in name]
        assert "PLANTED" not in str(environment)
        assert context.masking({"hunter2-long"})("say hunter2-long twice") == "say ********** twice"
