"""`lmcache plugins example`: a command line that works when it is pasted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, model_validator

from core.tests.app.plugin_rows import Install
from core.tests.app.test_plugins_show import Odd, install_store
from lmcache_core import CommandContext, Offer, PluginSettings
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.console.plugin_commands import LoadedCatalog
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_tools.commands.plugins_example import example_line, example_settings, run


def test_the_example_works_when_it_is_pasted(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install_store(install)
    assert run(["acme"], CommandContext(LoadedCatalog(load_plugins()))) == 0
    (line,) = capsys.readouterr().out.splitlines()
    program, command, *flags = shlex.split(line)
    assert (program, command) == ("lmcache", "server")
    (spec,) = adapter_specs(read_settings(ServerFlags().given(flags)).l2_adapter, load_plugins())
    assert spec.settings is not None
    assert spec.settings.model_dump()["cache_dir"] == Path("/tmp/lmcache")


def examples_that_are_configurations(plugins: LoadedPlugins) -> int:
    tried = 0
    for row in plugins.rows():
        for offered in row.offers:
            if offered.kind == "serde" and offered.offer.wraps:
                continue  # the chain, which is not named in a configuration
            model = plugins.model(offered.kind, offered.offer.name)
            _, _, *flags = shlex.split(example_line(offered.kind, offered.offer, model))
            settings = read_settings(ServerFlags().given(flags))
            adapter_specs(settings.l2_adapter, plugins)
            offer_specs(settings, plugins)
            tried += 1
    return tried


def test_every_example_of_core_is_a_configuration(only_core: None) -> None:
    assert examples_that_are_configurations(load_plugins()) == 8


def test_every_example_of_the_serdes_is_a_configuration() -> None:
    pytest.importorskip("lmcache_serde", reason="lmcache-serde is not installed")
    assert examples_that_are_configurations(load_plugins(["serde"])) == 13


def test_examples_fit_the_types_and_the_limits() -> None:
    values = example_settings(Odd)
    assert Odd.model_validate(values).model_dump(mode="json")["inner"] == {"host": "127.0.0.1", "size": 1}
    assert (values["colour"], values["word"], values["shown"]) == ("red", "a", "exactly this")


class Place(BaseModel):
    port: int = 80
    url: str | None = None
    folder: Path | None = None

    @model_validator(mode="after")
    def _one(self) -> Place:
        if (self.url is None) == (self.folder is None):
            raise ValueError("one of url and folder")
        return self


def test_an_example_has_one_of_several_fields_where_one_is_needed() -> None:
    class Some(PluginSettings):
        places: Annotated[tuple[Place, ...], Field(min_length=1)]

    values = example_settings(Some)
    assert values == {"places": [{"url": "http://127.0.0.1:9000"}]}
    Some.model_validate(values)


@pytest.mark.parametrize("kind", [OfferKind.L1_MEMORY, OfferKind.SERVICE])
def test_the_example_of_one_without_settings_asks_for_it(kind: OfferKind) -> None:
    assert example_line(kind, Offer("acme", "s", "a:b"), None).endswith(
        f"""--offer-settings '{{"{kind}:acme": {{}}}}'"""
    )


def test_the_example_of_a_command_asks_for_its_help() -> None:
    assert example_line(OfferKind.COMMAND, Offer("acme.run", "s", "a:b"), None) == "lmcache acme run --help"
