"""`lmcache plugins show`: what a name means, and what is shown about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from core.tests.app.test_cli import Environment, lmcache
from lmcache_client.errors import ConfigError
from lmcache_core.app.commands.plugins_show import Found, find, find_offer, offer_json, offer_text, plugin_text
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.setting_text import default_text, limits, type_name
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.errors import PluginContractError, PluginLoadError

Install = Callable[..., Path]

STORE = """
    from typing import Annotated
    from pathlib import Path
    from pydantic import BaseModel, Field, SecretStr
    from lmcache_core import Capability, Offer, PluginSettings, hookimpl

    class Retry(BaseModel):
        attempts_max: Annotated[int, Field(ge=1, description="How often.")] = 3

    class StoreSettings(PluginSettings):
        '''Where and how.'''
        bucket: Annotated[str, Field(description="Which bucket.")]
        cache_dir: Path
        port: Annotated[int, Field(ge=1, le=65535)]
        password: SecretStr
        timeout_seconds: Annotated[float, Field(gt=0, description="How long.")] = 30.0
        token: SecretStr = SecretStr("shown nowhere")
        retry: Retry = Retry()

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("{name}", "for tests", "{name}_plugin:open_it", "{name}_plugin:StoreSettings", Capability.DELETE)]
    """


def install_store(install: Install, name: str = "acme") -> None:
    install(name, STORE.replace("{name}", name))


# what a name means


def test_a_name_is_a_plugin_an_offer_or_both(install: Install) -> None:
    install_store(install)
    plugins = load_plugins()
    assert find(plugins, "acme").name == "plugin:acme"
    assert find(plugins, "l2_adapter:acme").name == "l2_adapter:acme"
    assert find(plugins, "memory").name == "l2_adapter:memory"
    assert find(plugins, "plugin:builtin").name == "plugin:builtin"
    assert find_offer(plugins, "acme").name == "l2_adapter:acme"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("default", "'default' is store_policy:default and prefetch_policy:default; name one of them"),
        ("memry", "is called 'memry'; did you mean 'memory'?"),
        ("zzzzzz", "is called 'zzzzzz'; installed: builtin, acme, "),
        ("nixl_store", "'nixl_store' is not installed: pip install lmcache-l2-nixl"),
        ("simulate", "'simulate' is not installed: pip install lmcache-policies"),
        ("l2_adaptor:memory", "'l2_adaptor' is not a kind; known: plugin, l2_adapter, "),
        ("l2_adapter:memry", "no L2 adapter is called 'memry'; did you mean 'memory'?"),
        ("plugin:memory", "no plugin is called 'memory'; installed: builtin"),
        ("plugin:builtim", "no plugin is called 'builtim'; did you mean 'builtin'?"),
        ("plugin:nixl", "plugin 'nixl' is not installed: pip install lmcache-l2-nixl"),
    ],
)
def test_a_name_that_says_too_little_or_nothing(install: Install, only_core: None, name: str, says: str) -> None:
    install("acme")
    with pytest.raises(ConfigError) as caught:
        find(load_plugins(), name)
    assert says.replace("builtin, acme, ", "builtin, ") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_offer_of_core_s_kinds_comes_before_one_of_a_kind_that_a_plugin_defines(install: Install) -> None:
    head = "from lmcache_core import Offer, hookimpl\n@hookimpl(optionalhook=True)\ndef lmcache_teleports():\n"
    offers = [f"Offer('{name}', 's', 'acme_plugin:lmcache_teleports')" for name in ("memory", "beam")]
    install("acme", head + f"    return [{', '.join(offers)}]\n")
    plugins = load_plugins()
    assert find(plugins, "memory").name == "l2_adapter:memory"
    assert find(plugins, "teleport:memory").name == "teleport:memory"
    assert find(plugins, "beam").name == "teleport:beam"


def test_a_plugin_and_an_offer_of_another_one_with_the_same_name(install: Install) -> None:
    install("LRU", "from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters(): return []\n")
    with pytest.raises(ConfigError, match="'LRU' is plugin:LRU and eviction_policy:LRU; name one of them"):
        find(load_plugins(), "LRU")
    assert find(load_plugins(), "plugin:LRU").row.candidate.distribution == "LRU-dist"


def test_a_plugin_of_many_offers_cannot_name_one(install: Install) -> None:
    with pytest.raises(ConfigError, match=r"plugin 'builtin' offers l2_adapter:memory and .*; name one of them"):
        find_offer(load_plugins(), "builtin")
    install("acme", "from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters(): return []\n")
    with pytest.raises(ConfigError, match="plugin 'acme' offers nothing"):
        find_offer(load_plugins(), "acme")


def test_an_offer_of_two_owners(install: Install) -> None:
    both = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n"
    for name in ("acme", "zeta"):
        install(name, both + "    return [Offer('shared', 's', 'a:b')]\n")
    with pytest.raises(PluginContractError, match=r"acme-dist 1.0.*zeta-dist 1.0"):
        find(load_plugins(), "shared")


def test_a_broken_plugin_can_be_shown_and_not_used(install: Install) -> None:
    install("acme", "import no_such_library")
    plugins = load_plugins()
    text = plugin_text(plugins, find(plugins, "acme").row)
    assert "status        broken" in text
    assert "install the module 'no_such_library', which it imports" in text
    assert "Traceback (most recent call last):" in text
    with pytest.raises(PluginLoadError, match="no_such_library"):
        find_offer(plugins, "acme")


def test_a_broken_plugin_is_found_by_the_name_that_its_offer_would_have(install: Install) -> None:
    install("l2_acme", "import no_such_library")
    plugins = load_plugins()
    assert find(plugins, "acme").name == "plugin:l2_acme"
    with pytest.raises(PluginLoadError, match="no_such_library"):
        find_offer(plugins, "acme")


# what is shown


def shown(name: str) -> tuple[Found, str]:
    plugins = load_plugins()
    found = find_offer(plugins, name)
    assert found.offered is not None
    return found, offer_text(plugins, found.row, found.offered)


def test_settings_as_a_table(install: Install) -> None:
    install_store(install)
    _, text = shown("acme")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("  ")}
    assert rows["SETTING"] == "TYPE REQUIRED DEFAULT UNIT, LIMITS DESCRIPTION"
    assert rows["bucket"] == "text yes - - Which bucket."
    assert rows["port"] == "integer yes - >= 1, <= 65535 -"
    assert rows["timeout_seconds"] == "number no 30 seconds, > 0 How long."
    assert rows["password"] == "secret text yes - - -"
    assert rows["retry.attempts_max"] == "integer no 3 >= 1 How often."
    assert rows["plugin"] == "acme (acme-dist 1.0), available"
    assert rows["capabilities"] == "delete"
    assert "Where and how." in text
    assert "shown nowhere" not in text


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    host: str
    size: int = 1


class Odd(PluginSettings):
    inner: Inner
    colour: Colour
    word: Literal["a", "b"]
    names: list[str]
    table: dict[str, int]
    maybe: Annotated[int, Field(ge=10)] | None
    few: Annotated[int, Field(lt=0)]
    shown: Annotated[str, Field(examples=["exactly this"])]
    flag: bool
    secret: SecretStr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inner", "object"),
        ("colour", "`red` or `blue`"),
        ("word", "`a` or `b`"),
        ("names", "list of names"),
        ("table", "object"),
        ("maybe", "integer"),
        ("flag", "switch"),
        ("secret", "secret text"),
    ],
)
def test_types_in_words(name: str, words: str) -> None:
    assert type_name(Odd.model_fields[name].annotation) == words


def test_limits_and_defaults_in_words() -> None:
    class Some(PluginSettings):
        bounded: Annotated[int, Field(ge=1)] | None = None
        made: list[str] = Field(default_factory=lambda: ["a"])
        switch: bool = True
        colour: Colour = Colour.BLUE

    fields = Some.model_fields
    assert limits(fields["bounded"]) == (">= 1",)
    assert [default_text(fields[name]) for name in ("bounded", "made", "switch", "colour")] == [
        "",
        "computed",
        "on",
        "blue",
    ]


def test_as_json_with_the_schema(install: Install, child_environment: Environment) -> None:
    install_store(install)
    record: dict[str, Any] = json.loads(
        lmcache(child_environment, "plugins", "show", "l2_adapter:acme", "--json").stdout
    )
    assert record["schema"]["properties"]["port"]["maximum"] == 65535
    assert record["plugin"]["distribution"] == "acme-dist"
    assert json.loads(lmcache(child_environment, "plugins", "show", "acme", "--schema").stdout) == record["schema"]
    whole = json.loads(lmcache(child_environment, "plugins", "show", "plugin:acme", "--json").stdout)
    assert whole["offers"][0]["schema"] == record["schema"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["LRU", "--schema"], "lmcache: eviction policy 'LRU' takes no settings"),
        (["LRU", "--schema", "--json"], "lmcache: --json and --schema: give one of them"),
        ([], "lmcache: the following arguments are required: NAME"),
        (["default"], "lmcache: 'default' is store_policy:default and"),
    ],
)
def test_what_cannot_be_shown_is_one_line(child_environment: Environment, arguments: list[str], says: str) -> None:
    done = lmcache(child_environment, "plugins", "show", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_a_settings_model_that_cannot_be_imported_is_said_and_the_rest_is_shown(install: Install) -> None:
    source = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n"
    install("acme", source + "    return [Offer('acme', 's', 'boto_three:o', 'boto_three:S')]\n")
    found, text = shown("acme")
    assert "No module named 'boto_three'" in text
    assert "pip install --upgrade acme-dist" in text
    assert found.offered is not None
    record = offer_json(load_plugins(), found.row, found.offered)
    assert record["schema"] is None
    assert "boto_three" in record["error"]


def test_a_command_is_shown_with_its_help(install: Install) -> None:
    source = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_commands():\n"
    install("acme", source + "    return [Offer('acme', 's', 'acme_plugin:run')]\n")
    found, text = shown("command:acme")
    assert found.offered is not None
    assert found.offered.kind is OfferKind.COMMAND
    assert "lmcache acme --help" in text
