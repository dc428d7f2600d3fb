"""Checks when a server opens its plugins: adapters whose completions would be lost, and offers that were not requested."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import zmq

from core.tests.app.test_build import built
from lmcache_client.errors import LMCacheError
from lmcache_core.model.errors import PluginContractError, PluginLoadError

Install = Callable[..., Path]
Log = pytest.LogCaptureFixture

ADAPTER = """
    from lmcache_core import Capability, L2Adapter, Offer, Outcome, hookimpl
    from lmcache_l2_adapter import BlockingL2Adapter

    class Acme(BlockingL2Adapter):
        capabilities = Capability.DELETE | Capability.USAGE
        def store(self, key, buffer): return Outcome.DONE
        def load(self, key, buffer): return Outcome.MISSING
        def contains(self, key): return False
        def delete(self, key): return Outcome.MISSING

    class Forgetful(Acme):
        def __init__(self): pass

    class Mute(Acme):
        def completions(self): raise RuntimeError("not yet")

    class Pretending(Acme):
        def completions(self):
            class Nothing:
                def fileno(self): return None
            return Nothing()

    def open_acme(settings, context): return Acme(context)
    def open_forgetful(settings, context): return Forgetful()
    def open_mute(settings, context): return Mute(context)
    def open_pretending(settings, context): return Pretending(context)

    @hookimpl
    def lmcache_l2_adapters():
        return [
            Offer(name, "s", f"acme_plugin:open_{name}", capabilities=Capability.DELETE | Capability.DURABLE)
            for name in ("acme", "forgetful", "mute", "pretending")
        ]
    """


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "forgetful",
            "completions().fileno() failed: RuntimeError: __init__ never called super().__init__(context, ...)",
        ),
        ("mute", "completions().fileno() failed: RuntimeError: not yet"),
        ("pretending", "completions().fileno() is None, which is not a file descriptor"),
    ],
)
def test_an_adapter_whose_completions_would_be_lost_stops_the_start(install: Install, name: str, says: str) -> None:
    install("acme", ADAPTER)
    with pytest.raises(PluginContractError) as caught, built(l2_adapter=({"type": name},)):
        pass
    assert str(caught.value) == f"L2 adapter '{name}' (acme-dist 1.0): {says}"


def test_capabilities_that_the_offer_does_not_say_are_one_warning(install: Install, caplog: Log) -> None:
    install("acme", ADAPTER)
    with built(l2_adapter=({"type": "acme"}, {"type": "memory"})):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "capabilities" in record.getMessage()]
    assert line.endswith("adapter=acme offer=[delete, durable] adapter's=[delete, usage]")


DEFAULTS = """
    from lmcache_core import Handler, HandlerMode, LeasesExpired, Offer, Operation, RequestModule, Subscriber, hookimpl

    closed = []

    class Listener(Subscriber):
        def subscriptions(self): return {subscriptions}

    class Module(RequestModule):
        def handlers(self): return {handlers}
        def status(self): return {status}
        def close(self): closed.append(self); {close}

    def open_listener(settings): {listener}; return Listener()
    def open_module(settings, context): {module}; return Module()

    def handler(name, number): return Handler(Operation(name, number, (), None), lambda call: None, HandlerMode.INLINE)

    @hookimpl
    def lmcache_subscribers(): return [Offer("acme", "s", "acme_plugin:open_listener", default=True)]

    @hookimpl
    def lmcache_request_modules(): return [Offer("acme", "s", "acme_plugin:open_module", default=True)]
    """


def install_defaults(install: Install, **faults: str) -> None:
    parts = {
        "subscriptions": "{}",
        "handlers": "[]",
        "listener": "pass",
        "module": "pass",
        "status": "{}",
        "close": "pass",
    }
    parts |= faults
    source = dedent(DEFAULTS)
    for name, part in parts.items():
        source = source.replace(f"{{{name}}}", part)
    install("acme", source)


def warnings(caplog: Log) -> list[str]:
    """About the plugin under test: others that are installed may have their own, such as a port that is taken."""
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in said if "acme" in line]


ASKED: list[dict[str, Any]] = [
    {"plugins": ("acme",)},
    {"offer_settings": {"request_module:acme": {}, "subscriber:acme": {}}},
]
FAULTS = [
    ({"listener": "1 / 0"}, "subscriber 'acme' (acme-dist 1.0) cannot be opened: ZeroDivisionError: division by zero"),
    ({"subscriptions": "1 / 0"}, "subscriber 'acme' (acme-dist 1.0): subscriptions() failed: ZeroDivisionError"),
    ({"subscriptions": "exit(3)"}, "subscriber 'acme' (acme-dist 1.0): subscriptions() failed: SystemExit: 3"),
    ({"subscriptions": "{1: print}"}, "subscriber 'acme' (acme-dist 1.0): subscriptions() maps 1 to"),
    (
        {"subscriptions": "{Subscriber: print}"},
        "subscriber 'acme' (acme-dist 1.0): subscriptions() maps <class 'lmcache_core.contracts.subscriber.Subscriber'> to",
    ),
    (
        {"subscriptions": "{LeasesExpired: 3}"},
        "subscriber 'acme' (acme-dist 1.0): subscriptions() maps <class 'lmcache_core.contracts.events.LeasesExpired'> to 3",
    ),
    ({"subscriptions": "None"}, "subscriber 'acme' (acme-dist 1.0): subscriptions() failed: TypeError"),
    ({"module": "return None"}, "request module 'acme' (acme-dist 1.0) opens as NoneType, not as RequestModule"),
    ({"handlers": "1 / 0"}, "request module 'acme' (acme-dist 1.0): handlers() failed: ZeroDivisionError"),
    ({"handlers": "exit(3)"}, "request module 'acme' (acme-dist 1.0): handlers() failed: SystemExit: 3"),
    ({"handlers": "[3]"}, "request module 'acme' (acme-dist 1.0): handlers() has int where Handler belongs"),
    (
        {"handlers": "[handler('ping', 3000)]"},
        "request modules 'management' (lmcache-core 0.1.0) and 'acme' (acme-dist 1.0) both answer operation 'ping'",
    ),
    (
        {"handlers": "[handler('ACME', 3000), handler('ACME', 3001)]"},
        "request module 'acme' (acme-dist 1.0) twice answers operation 'ACME'",
    ),
]


@pytest.mark.parametrize(("fault", "says"), FAULTS)
def test_what_was_not_requested_and_is_not_available_is_left_out(
    install: Install, caplog: Log, fault: dict[str, str], says: str
) -> None:
    install_defaults(install, **fault)
    with built() as server:
        status = server.status()
    (row,) = [row for row in status["plugins"] if row["name"] == "acme"]
    assert row["status"] == "broken"
    assert row["error"].startswith(says)
    assert [each["name"] for each in status["conditions"] if each["subject"] == "plugin acme"] == ["plugin_unusable"]
    line, condition = warnings(caplog)
    assert condition.startswith("condition began name=plugin_unusable subject=plugin acme")
    assert line.startswith(f"plugin 'acme' (acme-dist 1.0) is broken: {says}")
    assert line.endswith("leave it out: --no-plugin acme")
    assert ("acme" in status["modules"]) == bool({"listener", "subscriptions"} & set(fault))
    assert {"lookup", "management", "engine_driven"} <= set(status["modules"])
    import acme_plugin  # type: ignore[import-not-found]

    assert len(acme_plugin.closed) == ("module" not in fault)


@pytest.mark.parametrize(("fault", "says"), FAULTS)
@pytest.mark.parametrize("asked", ASKED)
def test_what_was_requested_and_is_not_available_stops_the_start(
    install: Install, fault: dict[str, str], says: str, asked: dict[str, Any]
) -> None:
    install_defaults(install, **fault)
    with pytest.raises((PluginContractError, PluginLoadError)) as caught, built(**asked):
        pass
    assert str(caught.value).startswith(says)


def test_a_module_that_the_engine_type_names_is_asked_for(install: Install) -> None:
    install_defaults(install, handlers="1 / 0")
    with pytest.raises(LMCacheError, match="handlers"), built(engine_type="acme"):
        pass


def test_a_third_party_check_that_works_is_asked_once(install: Install) -> None:
    install_defaults(install, subscriptions="closed.append('asked') or {}")
    with built() as server:
        import acme_plugin

        assert acme_plugin.closed == ["asked"]
        assert "acme" in server.status()["modules"]


@pytest.mark.parametrize("fault", ["1 / 0", "exit()"])
def test_a_module_that_fails_ends_neither_a_status_nor_a_stop(install: Install, caplog: Log, fault: str) -> None:
    install_defaults(install, status=fault, close=fault)
    with built() as server:
        assert list(server.status()["modules"]["acme"]) == ["error"]
        server.stop(5.0)
        assert server._parts.tiers.arena._closed, "what comes after the module was closed, too"
    assert any("plugin failed to close module=acme" in line for line in warnings(caplog))


def test_status_names_the_policies() -> None:
    with built() as server:
        assert server.status()["policies"] == {"eviction": "LRU", "store": "default", "prefetch": "default"}


def test_a_start_that_fails_closes_the_engine_port(install: Install) -> None:
    def sockets() -> set[int]:
        return {id(each) for each in gc.get_objects() if issubclass(type(each), zmq.Socket) and not each.closed}

    install_defaults(install, module="return None")
    gc.collect()
    before = sockets()
    with pytest.raises(PluginContractError) as caught, built(plugins=("acme",)):
        pass
    assert caught.value.__traceback__, "keeps the frames of the start, and what they opened"
    assert sockets() <= before, "none was left open"
