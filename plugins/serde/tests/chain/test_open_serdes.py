"""The `serde` of an adapter: what is opened, what is refused, and that its secrets are not shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_client.layout import ObjectLayout
from lmcache_core.app.adapter_specs import adapter_spec
from lmcache_core.app.open_l2 import open_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import all_secrets, shown_adapter
from lmcache_core.builtin import memory_l2
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.model.errors import PluginContractError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_serde.chain.adapter import ChainedAdapter
from plugins.serde.tests.chain import serde_plugin

SECRET = "sesame-open-please"


@pytest.fixture(scope="module")
def plugins() -> LoadedPlugins:
    return load_plugins(["serde", serde_plugin.__name__])


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


def opened(plugins: LoadedPlugins, serde: Any, layouts: KnownLayouts | None = None, **more: Any) -> L2Adapter:
    spec = adapter_spec({"type": "memory", "serde": serde, **more}, plugins, "--l2-adapter[0]", ())
    return open_spec(spec, plugins, adapter_context(BorrowedMemory(1 << 20)), layouts or KnownLayouts())


@pytest.mark.parametrize(
    ("serde", "names"),
    [
        ("xor", ("xor",)),
        ({"type": "lock", "master": SECRET}, ("lock",)),
        (["half", {"type": "deflate"}, "xor"], ("half", "deflate", "xor")),
    ],
    ids=str,
)
def test_serdes_are_opened_in_their_order(
    plugins: LoadedPlugins, undo: ExitStack, serde: Any, names: tuple[str, ...]
) -> None:
    adapter = opened(plugins, serde)
    undo.callback(adapter.close, 1.0)
    assert isinstance(adapter, ChainedAdapter)
    assert adapter.chain.names == names
    assert isinstance(adapter.inner, MemoryAdapter)
    assert len(adapter.inner.context.regions) == 2, "the memory of the serdes is not among the regions inside"


def test_without_a_serde_the_adapter_is_itself(plugins: LoadedPlugins, undo: ExitStack) -> None:
    adapter = opened(plugins, None)
    undo.callback(adapter.close, 1.0)
    assert isinstance(adapter, MemoryAdapter)


def test_a_serde_for_numbers_comes_first(plugins: LoadedPlugins) -> None:
    with pytest.raises(
        ConfigError, match=r"\[0\]\.serde: serde 'half' takes the numbers .* named after 'xor'.*name it first"
    ):
        opened(plugins, ["xor", "half"])


def test_what_opens_as_something_else_is_not_a_serde(plugins: LoadedPlugins) -> None:
    with pytest.raises(PluginContractError, match=r"serde 'nothing' .* opens as object, not as Serde"):
        opened(plugins, "nothing")


@pytest.mark.parametrize("name", ["zstd", "aesgcm"])
def test_a_serde_that_is_known_says_what_to_install(name: str) -> None:
    with pytest.raises(ConfigError, match=r"lmcache-serde|plugin 'serde' is not among"):
        opened(load_plugins([serde_plugin.__name__]), name)


def test_without_what_puts_them_around_an_adapter_the_remedy_is_named() -> None:
    """A third party's serde alone does not suffice."""
    with pytest.raises(
        ConfigError, match=r"\[0\]\.serde: the plugin 'serde' of lmcache-serde puts serdes around adapters"
    ):
        opened(load_plugins([serde_plugin.__name__]), "xor")


def test_what_the_serdes_may_use_is_checked(plugins: LoadedPlugins) -> None:
    says = r"--l2-adapter\[0\]: field 'serde_workers' is 0: input should be greater than or equal to 1"
    with pytest.raises(ConfigError, match=says):
        opened(plugins, "xor", serde_workers=0)


def test_the_chain_itself_is_not_a_serde_of_an_adapter(plugins: LoadedPlugins) -> None:
    with pytest.raises(
        ConfigError, match=r"\[0\]\.serde: 'chain' is what puts serdes around an adapter; name the serdes"
    ):
        opened(plugins, "chain")


def test_a_misspelt_one_says_which_was_meant(plugins: LoadedPlugins) -> None:
    with pytest.raises(ConfigError, match=r"no serde is called 'deflat'; did you mean 'deflate'\?"):
        opened(plugins, "deflat")


def test_memory_that_is_not_available_says_what_to_lower(plugins: LoadedPlugins) -> None:
    with pytest.raises(ConfigError, match="lower serde_memory_gb"):
        opened(plugins, "xor", serde_memory_gb=1e8)


def test_a_registered_layout_that_does_not_fit_is_refused_at_the_start(plugins: LoadedPlugins) -> None:
    layouts = KnownLayouts()
    layouts.learn(ObjectLayout(2, 16, 256, 1024, "bfloat16"))
    with pytest.raises(ConfigError, match=r"\[0\]\.serde: chunks of .* are too large.*raise serde_memory_gb"):
        opened(plugins, "xor", layouts, serde_memory_gb=0.01)


def test_padding_is_said_once(
    plugins: LoadedPlugins, undo: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryAdapter, "capabilities", memory_l2.CAPABILITIES & ~Capability.ANY_LENGTH)
    undo.callback(opened(plugins, "deflate").close, 1.0)
    assert caplog.text.count("compression saves nothing there") == 1


def test_an_adapter_that_checks_loads_and_knows_no_serdes_is_refused(
    plugins: LoadedPlugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdapter, "capabilities", Capability.DELETE | Capability.VERIFIES)
    closed: list[float] = []
    monkeypatch.setattr(MemoryAdapter, "close", lambda adapter, seconds: closed.append(seconds))
    with pytest.raises(ConfigError, match=r"\(VERIFIES\) and does not declare ANY_LENGTH.*leave out its 'serde'"):
        opened(plugins, "deflate")
    assert closed == [0.0], "it was left open"


def test_memory_that_holds_nothing_says_what_to_raise(plugins: LoadedPlugins) -> None:
    layouts = KnownLayouts()
    layouts.learn(ObjectLayout(2, 1, 1, 8, "bfloat16"))
    with pytest.raises(ConfigError, match="raise serde_memory_gb"):
        opened(plugins, "xor", layouts, serde_memory_gb=1e-12)


def test_what_cannot_become_smaller_behind_encryption_is_said(
    plugins: LoadedPlugins, undo: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    undo.callback(opened(plugins, ["deflate", "forgetful"]).close, 1.0)
    assert caplog.text == ""
    undo.callback(opened(plugins, ["forgetful", "deflate"]).close, 1.0)
    assert "named after one that encrypts" in caplog.text


@pytest.mark.parametrize("as_list", [False, True])
def test_secrets_of_serdes_are_shown_nowhere(plugins: LoadedPlugins, as_list: bool) -> None:
    lock = {"type": "lock", "master": SECRET}
    given = {"type": "memory", "serde": ["deflate", lock] if as_list else lock}
    shown = shown_adapter(given, plugins)
    assert SECRET not in json.dumps(shown)
    assert json.dumps(shown).count("**********") == 1
    settings = ServerSettings.model_construct(l2_adapter=(given,))
    assert SECRET in all_secrets(settings, plugins)
    spec = adapter_spec(given, plugins, "--l2-adapter[0]", ())
    assert spec.serdes is not None
    assert SECRET not in repr(spec.serdes)
    with pytest.raises(ConfigError) as caught:
        adapter_spec({"type": "memory", "serde": {**lock, "lenght": 3}}, plugins, "--l2-adapter[0]", ())
    assert "no field is called 'lenght'" in str(caught.value)
    assert SECRET not in str(caught.value)
