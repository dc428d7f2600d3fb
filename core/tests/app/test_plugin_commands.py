"""`lmcache NAME` for commands of plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.tests.app.test_cli import Environment, lmcache
from lmcache_client.errors import ConfigError
from lmcache_core.app.cli import main
from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.plugin_catalog import LoadedCatalog

Install = Callable[..., Path]
COMMANDS = """
    from typing import Annotated
    from pydantic import Field
    from lmcache_core import ConfigError, Offer, PluginSettings, hookimpl

    class AcmeSettings(PluginSettings):
        ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def policy(settings):
        return ("policy", settings.ratio)

    def run(arguments, context):
        print(list(arguments), [offer.name for offer in context.plugins.offers("eviction_policy")])
        print(context.plugins.open("eviction_policy", "acme", {"ratio": 0.1}))
        return int(arguments[0])

    def refuse(arguments, context): raise ConfigError("too few lemons; buy some")
    def crash(arguments, context): raise OSError("no such device")
    def leave(arguments, context): raise SystemExit(7)
    def forget(arguments, context): pass
    def agree(arguments, context): return True
    def wrap(arguments, context): return 256

    @hookimpl
    def lmcache_eviction_policies():
        return [Offer("acme", "s", "acme_plugin:policy", "acme_plugin:AcmeSettings")]

    @hookimpl
    def lmcache_commands():
        names = ("run", "refuse", "crash", "leave", "forget", "agree", "wrap")
        return [
            *(Offer(name, f"does {name}", f"acme_plugin:{name}") for name in names),
            Offer("absent", "s", "no_such_library:run"),
            Offer("server", "takes the place of core's", "acme_plugin:run"),
        ]
    """


def test_a_command_gets_its_arguments_and_the_catalog_and_its_exit_code_passes(
    install: Install, child_environment: Environment
) -> None:
    install("acme", COMMANDS)
    done = lmcache({**child_environment, "LMCACHE_PLUGINS": "acme"}, "run", "3", "--plugin", "its own", "--help")
    assert done.returncode == 3
    assert done.stdout == "['3', '--plugin', 'its own', '--help'] ['LRU', 'acme']\n('policy', 0.1)\n"
    assert done.stderr == ""
    assert lmcache(child_environment, "run", "0").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["refuse"], 2, "lmcache: too few lemons; buy some\n"),
        (
            ["absent"],
            4,
            "No module named 'no_such_library'; something it needs is not installed: pip install --upgrade acme",
        ),
        (
            ["forget"],
            4,
            "lmcache: command 'forget' ('acme_plugin:forget') returned NoneType where an exit code belongs\n",
        ),
        (["agree"], 4, "lmcache: command 'agree' ('acme_plugin:agree') returned bool where an exit code belongs\n"),
        (["wrap"], 4, "lmcache: command 'wrap' ('acme_plugin:wrap') returned 256; an exit code is 0 to 255\n"),
        (["leave"], 7, ""),
        (["forgot"], 2, "lmcache: no command is called 'forgot'; did you mean 'forget'?\n"),
        (["statsu"], 2, "lmcache: no command is called 'statsu'; did you mean 'status'? (pip install lmcache-tools)\n"),
        (
            ["qqqqq"],
            2,
            f"lmcache: no command is called 'qqqqq'; known: {', '.join(CORE_COMMANDS)}, ",
        ),
        (["coordinator"], 2, "lmcache: no command is called 'coordinator'; known: "),
    ],
)
def test_how_a_command_ends(
    install: Install, child_environment: Environment, arguments: list[str], code: int, says: str
) -> None:
    install("acme", COMMANDS)
    done = lmcache({**child_environment, "LMCACHE_PLUGINS": "acme"}, *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.count("\n") == (1 if says else 0)


def test_what_a_command_raises_by_mistake_is_one_line_that_says_where(
    install: Install, child_environment: Environment
) -> None:
    source = install("acme", COMMANDS).parent / "acme_plugin.py"
    number = next(at for at, line in enumerate(source.read_text().splitlines(), 1) if "def crash" in line)
    done = lmcache(child_environment, "crash")
    assert done.returncode == 1
    assert done.stderr == (
        "lmcache: command 'crash' of plugin 'acme' (acme-dist 1.0) failed: OSError: no such device "
        f"({source}:{number})\n"
    )


def test_all_of_what_it_raised_is_a_debug_line(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("acme", COMMANDS)
    with caplog.at_level("DEBUG"):
        assert main(["crash"]) == 1
    assert "in crash" in caplog.text


def test_an_unknown_command_may_be_that_of_an_unusable_plugin(install: Install, child_environment: Environment) -> None:
    install("acme", "import no_such_library")
    for word, before in (("statsu", "did you mean 'status'? (pip install lmcache-tools)."), ("qqqqq", "version.")):
        done = lmcache({**child_environment, "LMCACHE_PLUGINS": "acme"}, word)
        assert done.returncode == 2
        unusable = "Unusable: plugin 'acme' (acme-dist 1.0) is broken: ModuleNotFoundError: "
        assert f"{before} {unusable}" in done.stderr
        assert done.stderr.count("\n") == 1


def test_help_lists_commands_of_plugins_below_core_s(install: Install, child_environment: Environment) -> None:
    install("acme", COMMANDS)
    lines = [" ".join(line.split()) for line in lmcache(child_environment, "--help").stdout.splitlines()]
    assert lines.index("server run a cache server") < lines.index("of plugins:") < lines.index("refuse does refuse")
    assert not any("takes the place" in line for line in lines)


def test_core_s_commands_are_core_s(install: Install, child_environment: Environment) -> None:
    install("acme", COMMANDS)
    done = lmcache(child_environment, "server", "--prot", "1")
    assert "did you mean --port?" in done.stderr
    (line,) = [line for line in load_plugins().warnings if "server" in line]
    assert line == (
        "command 'server' of plugin 'acme' (acme-dist 1.0) is not used: the name is that of a command of core"
    )
    assert "the name is that of a command of core" in lmcache(child_environment, "plugins", "list").stdout


def test_two_plugins_with_one_command(install: Install, child_environment: Environment) -> None:
    source = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_commands():\n"
    for name in ("acme", "zeta"):
        install(name, source + "    return [Offer('shared', 's', 'a:b')]\n")
    done = lmcache(child_environment, "shared")
    assert done.returncode == 4
    assert "plugin 'acme' (acme-dist 1.0) and plugin 'zeta' (zeta-dist 1.0)" in done.stderr


def test_a_broken_plugin_does_not_keep_others_commands_from_running(
    install: Install, child_environment: Environment
) -> None:
    install("acme", COMMANDS)
    install("broken", "import no_such_library")
    assert lmcache(child_environment, "run", "0").returncode == 0


# the catalog


def test_the_catalog_opens_with_settings_that_were_checked(install: Install) -> None:
    install("acme", COMMANDS)
    catalog = LoadedCatalog(load_plugins())
    assert catalog.open("eviction_policy", "acme", {}) == ("policy", 0.5)
    with pytest.raises(ConfigError, match="eviction policy 'acme': field 'ratio' is 7"):
        catalog.open("eviction_policy", "acme", {"ratio": 7})
    with pytest.raises(ConfigError, match="eviction policy 'acne': no eviction policy is called 'acne'"):
        catalog.open("eviction_policy", "acne", {})
    with pytest.raises(ConfigError, match="L2 adapter 'memory' needs a running server"):
        catalog.open("l2_adapter", "memory", {})
    with pytest.raises(ConfigError, match="no kind of offer is called 'policy'; known: l2_adapter, "):
        catalog.offers("policy")
