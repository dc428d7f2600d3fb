"""L1 in the memory of a plugin: chosen by its settings, checked before anything uses it, and closed after everything did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.tests.app.test_build import built
from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core.model.errors import PluginContractError

Install = Callable[..., Path]

SOURCE = """
    import ctypes, mmap
    from lmcache_client.errors import ResourceError
    from lmcache_core import L1Memory, MemoryRegion, Offer, PluginSettings, SettingGroup, hookimpl

    CALLS = []

    class Settings(PluginSettings):
        fault: str = ""

    class Cellar(L1Memory):
        def __init__(self, settings, context):
            CALLS.append(("open", context.size_bytes, context.align_bytes, context.instance_id))
            self.fault = settings.fault
            if self.fault == "full":
                raise ResourceError("the cellar is full; use another one")
            size = context.size_bytes + (4096 if self.fault == "large" else 0)
            self.mapping = mmap.mmap(-1, size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
            view = memoryview(self.mapping)
            view = view.toreadonly() if self.fault == "readonly" else view
            self.own = MemoryRegion(address + (self.fault == "skewed"), size, view)

        @property
        def region(self):
            if self.fault == "raises":
                raise RuntimeError("no luck")
            return "memory" if self.fault == "text" else self.own

        @property
        def kind(self):
            return "deep cellar" if self.fault == "sentence" else "cellar"

        def unlink(self):
            CALLS.append("unlink")

        def close(self):
            CALLS.append("close")

    def open_nothing(settings, context):
        return None

    @hookimpl
    def lmcache_l1_memories():
        return [
            Offer("{name}", "for tests", "{name}_plugin:Cellar", "{name}_plugin:Settings"),
            Offer("{name}_void", "for tests", "{name}_plugin:open_nothing"),
        ]
    """
FLAGS = """
    class Flags(PluginSettings):
        from pydantic import Field
        acme_cellar: bool = Field(False, description="L1 lies in the cellar.")

    def apply(values, given):
        return {"l1_memory:acme": {}} if values.acme_cellar else {}

    @hookimpl
    def lmcache_settings():
        return [SettingGroup("Cellar", "acme_plugin:Flags", "acme_plugin:apply")]
    """


def put(install: Install, name: str = "acme", more: str = "") -> None:
    install(name, SOURCE.replace("{name}", name) + more)


def calls() -> list[Any]:
    found: list[Any] = __import__("acme_plugin").CALLS
    return found


def asked(fault: str = "", name: str = "acme") -> dict[str, Any]:
    return {"offer_settings": {f"l1_memory:{name}": {"fault": fault} if fault else {}}, "shm_name": ""}


def test_installed_and_not_asked_for_it_is_not_used(install: Install) -> None:
    put(install)
    with built() as server:
        assert server.status()["l1"]["kind"] == "shared_memory"


def test_one_whose_settings_are_given_lives_as_long_as_the_server(install: Install) -> None:
    put(install)
    with built(instance_id="node-7", **asked()) as server:
        assert calls() == [("open", 64 << 20, 4096, "node-7")]
        l1 = server.status()["l1"]
        assert (l1["kind"], l1["segment"], l1["file"]) == ("cellar", None, None)
        assert l1["backed_bytes"] == 64 << 20, "its pages are allocated when it is opened"
        server.stop(5.0)
        assert calls()[1:3] == ["unlink", "close"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("large", r"its region has 67112960 bytes and a view of 67112960, not 67108864 in both"),
        ("readonly", "its region must be writable bytes that begin at a page"),
        ("skewed", "its region must be writable bytes that begin at a page"),
        ("text", "its region is a str, not a MemoryRegion"),
        ("raises", "it cannot be read: .*no luck"),
        ("sentence", "its kind is 'deep cellar', not a word such as file"),
    ],
)
def test_one_that_is_not_as_the_contract_says_stops_the_start_and_is_closed(
    install: Install, fault: str, why: str
) -> None:
    put(install)
    with pytest.raises(PluginContractError, match=f"L1 memory of plugin 'acme' .*: {why}"), built(**asked(fault)):
        pass
    assert calls()[1:] == ["close"]


def test_one_that_has_no_memory_stops_the_start_with_its_own_words(install: Install) -> None:
    put(install)
    with pytest.raises(ResourceError, match="the cellar is full; use another one"), built(**asked("full")):
        pass


def test_what_is_not_a_memory_is_refused(install: Install) -> None:
    put(install)
    with pytest.raises(PluginContractError, match="not as L1Memory"), built(**asked(name="acme_void")):
        pass


def test_l1_lies_in_one_memory(install: Install) -> None:
    put(install)
    put(install, "other")
    both: dict[str, Any] = {"l1_memory:acme": {}, "l1_memory:other": {}}
    with pytest.raises(ConfigError, match="L1 lies in one memory; leave one of them out"), built(offer_settings=both):
        pass


@pytest.mark.parametrize("given", [{"shm_name": "a"}, {"l1_use_hugepages": True}, {"l1_numa": "interleave"}])
def test_settings_about_cores_memory_do_not_go_with_another_one(install: Install, given: dict[str, Any]) -> None:
    put(install)
    flag = "--" + next(iter(given)).replace("_", "-")
    with (
        pytest.raises(ConfigError, match=f"L1 does not lie in core's memory, which {flag} is about; leave one"),
        built(**{**asked(), **given}),
    ):
        pass


def test_a_plugin_chooses_it_by_a_flag_of_its_own(install: Install) -> None:
    from lmcache_core.app.configuration import ServerFlags, read_settings
    from lmcache_core.app.offer_specs import offer_specs
    from lmcache_core.app.plugins.loading import load_plugins

    put(install, more=FLAGS)
    plugins = load_plugins()
    specs = [
        offer_specs(read_settings(ServerFlags(plugins).given(flags), plugins), plugins).l1_memory
        for flags in ([], ["--acme-cellar"])
    ]
    assert specs[0] is None
    assert specs[1] is not None
    assert specs[1].name == "acme"


def test_an_unknown_one_is_refused_with_what_there_is(install: Install) -> None:
    put(install)
    with pytest.raises(LMCacheError, match=r"no L1 memory is called 'acne'"), built(**asked(name="acne")):
        pass
