"""The composition root with plugins: what is opened, with which settings, and what `/status` says of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.model.errors import PluginContractError
from lmcache_devkit import free_port

Install = Callable[..., Path]
PLUGIN = """
    from lmcache_core import EvictionPolicy, Offer, PluginSettings, RequestModule, Subscriber, hookimpl

    opened = {}

    class AcmeSettings(PluginSettings):
        label: str = "none"

    class Policy(EvictionPolicy):
        def on_insert(self, slots, facts): pass
        def on_access(self, slots, facts): pass
        def on_remove(self, slots): pass
        def victims(self, demand, may_evict): return ()

    class Listener(Subscriber):
        def subscriptions(self): return {}

    class Module(RequestModule):
        def handlers(self): return []

    def open_policy(settings): opened["policy"] = settings.label; return Policy()
    def open_listener(settings): opened["listener"] = settings.label; return Listener()
    def open_module(settings, context): opened["module"] = settings.label; return Module()
    def open_nothing(settings, context): return None
    def open_empty(settings): return None

    def offer(opener, **more):
        return [Offer("acme", "s", f"acme_plugin:{opener}", "acme_plugin:AcmeSettings", **more)]

    @hookimpl
    def lmcache_eviction_policies(): return [*offer("open_policy"), Offer("void", "s", "acme_plugin:open_empty")]

    @hookimpl
    def lmcache_subscribers(): return offer("open_listener", default=True)

    @hookimpl
    def lmcache_request_modules(): return [*offer("open_module"), Offer("void", "s", "acme_plugin:open_nothing")]
    """


@contextmanager
def built(**settings: object) -> Iterator[Server]:
    defaults: dict[str, object] = {
        "host": "127.0.0.1",
        "port": free_port(),
        "l1_size_gb": 1 / 16,
        "http_enabled": False,
        "shm_name": f"test-{uuid.uuid4().hex}",
    }
    plugins = load_plugins()
    server = build(read_settings({**defaults, **settings}, plugins), plugins)
    try:
        server.start()
        yield server
    finally:
        server.stop(5.0)


def test_everything_is_opened_with_the_settings_that_were_given_for_it(install: Install) -> None:
    install("acme", PLUGIN)
    given = {"subscriber:acme": {"label": "by key"}, "request_module:acme": {"label": "by key, too"}}
    with built(eviction_policy={"type": "acme", "label": "by flag"}, offer_settings=given, engine_type="acme"):
        import acme_plugin  # type: ignore[import-not-found]

        assert acme_plugin.opened == {"policy": "by flag", "listener": "by key", "module": "by key, too"}


def test_status_lists_the_plugins(install: Install) -> None:
    install("acme", PLUGIN)
    install("broken", "import no_such_library")
    install("other", requires="lmcache-core>=99")
    with built(l2_adapter=({"type": "memory"},)) as server:
        rows = {row["name"]: row for row in server.status()["plugins"]}
        msgspec.json.encode(server.status())
    assert (rows["builtin"]["version"], rows["builtin"]["status"], rows["builtin"]["error"]) == (
        "0.1.0",
        "active",
        None,
    )
    assert rows["builtin"]["setup_ms"] >= 0
    assert rows["acme"]["status"] == "active"
    assert rows["broken"]["error"] == "ModuleNotFoundError: No module named 'no_such_library'"
    assert (rows["other"]["status"], rows["other"]["setup_ms"]) == ("incompatible", None)


def test_wrong_settings_are_found_before_anything_is_opened(install: Install) -> None:
    install("acme", PLUGIN)
    name = f"test-{uuid.uuid4().hex}"
    with (
        pytest.raises(ConfigError, match="--eviction-policy: no field is called 'lable'"),
        built(eviction_policy={"type": "acme", "lable": "x"}, shm_name=name),
    ):
        pass
    import acme_plugin

    assert acme_plugin.opened == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"engine_type": "void"},
            r"request module 'void' \(acme-dist 1.0\) opens as NoneType, not as RequestModule",
        ),
        ({"eviction_policy": "void"}, r"eviction policy 'void' \(acme-dist 1.0\) opens as NoneType, not as Evict"),
        ({"l2_adapter": ({"type": "void"},)}, r"L2 adapter 'void' \(acme-dist 1.0\) opens as NoneType, not as L2"),
    ],
)
def test_what_is_not_what_it_should_be_stops_the_start(
    install: Install, settings: dict[str, object], says: str
) -> None:
    adapter = "@hookimpl\ndef lmcache_l2_adapters(): return [Offer('void', 's', 'acme_plugin:open_nothing')]\n"
    install("acme", dedent(PLUGIN) + adapter)
    with pytest.raises(PluginContractError, match=says), built(**settings):
        pass
