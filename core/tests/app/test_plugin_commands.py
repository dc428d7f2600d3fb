"""`lmcache NAME` for commands of plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.tests.app.test_cli import Environment, lmcache
from lmcache_client.errors import ConfigError
from lmcache_core.app.cli import main
from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.console.plugin_commands import LoadedCatalog
from lmcache_core.app.plugins.loading import load_plugins

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
    done = lmcache(child_environment, "--plugin", "acme", "run", "3", "--plugin", "its own", "--help")
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
        (["verison"], 2, "lmcache: no command is called 'verison'; did you mean 'version'?\n"),
        (
            ["qqqqq"],
            2,
            f"lmcache: no command is called 'qqqqq'; known: {', '.join(CORE_COMMANDS)}, ",
        ),
        (["coordinate"], 2, "lmcache: no command is called 'coordinate'; known: "),
    ],
)
def test_how_a_command_ends(
    install: Install, child_environment: Environment, arguments: list[str], code: int, says: str
) -> None:
    install("acme", COMMANDS)
    done = lmcache(child_environment, "--plugin", "acme", *arguments)
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
    for word, before in (("verison", "did you mean 'version'?"), ("qqqqq", "version.")):
        done = lmcache(child_environment, "--plugin", "acme", word)
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


GROUPED = """
    import argparse
    from lmcache_core import Command, Offer, hookimpl

    def run(arguments, context):
        print("acme ran", *arguments)
        return 0

    def parsers():
        raise SystemExit(3)

    CHECK = Command(run, parsers)
    WRONG = Command(run, lambda: [argparse.ArgumentParser("lmcache server")])

    @hookimpl
    def lmcache_commands():
        return [Offer(name, "does it", f"acme_plugin:{function}") for name, function in OFFERS]
    """


def grouped(*offers: tuple[str, str]) -> str:
    return f"    OFFERS = {offers!r}\n{GROUPED}"


def test_a_plugin_adds_a_word_to_a_group_of_core_and_groups_of_its_own(
    install: Install, child_environment: Environment
) -> None:
    install("acme", grouped(("plugins.acme", "run"), ("acme.go", "run")))
    assert lmcache(child_environment, "plugins", "acme", "1").stdout == "acme ran 1\n"
    assert lmcache(child_environment, "acme", "go", "2").stdout == "acme ran 2\n"
    assert "  acme     does it" in lmcache(child_environment, "plugins", "--help").stdout
    assert "  go  does it" in lmcache(child_environment, "acme", "--help").stdout
    assert lmcache(child_environment, "acme", "og").stderr == (
        "lmcache: no command is called 'acme og'; did you mean 'acme go'?\n"
    )
    assert "have a blank" in lmcache(child_environment, "acme.go").stderr


@pytest.mark.parametrize("name", ["plugins.show", "server.more", "help"])
def test_words_of_core_stay_core_s(install: Install, child_environment: Environment, name: str) -> None:
    install("acme", grouped((name, "run")))
    assert "acme ran" not in lmcache(child_environment, *name.split(".")).stdout
    assert "the name is that of a command of core" in lmcache(child_environment, "plugins", "list").stdout


def test_a_command_and_a_group_of_one_name_exclude_each_other(install: Install, child_environment: Environment) -> None:
    install("acme", grouped(("quota", "run")))
    done = lmcache(child_environment, "quota", "set", "s", "--limit-gb", "1")
    assert (done.returncode, done.stdout) == (4, "")
    assert (
        "exclude each other, and none is used: leave one out with --no-plugin acme or --no-plugin tools" in done.stderr
    )
    assert "exclude each other" in lmcache(child_environment, "plugins", "list").stdout
    assert "LIMIT_GB" not in lmcache(child_environment, "--no-plugin", "acme", "quota", "--help").stderr


def test_two_plugins_with_one_word_are_both_named(install: Install, child_environment: Environment) -> None:
    install("acme", grouped(("config.set", "run"), ("quota.set", "run")))
    for group in ("config", "quota"):
        done = lmcache(child_environment, group, "set")
        assert done.returncode == 4
        assert f"command '{group}.set' is offered by plugin 'acme'" in done.stderr


@pytest.mark.parametrize("function", ["CHECK", "WRONG"])
def test_a_command_whose_flags_fail_to_load_leaves_the_others_their_completion(
    install: Install, child_environment: Environment, function: str
) -> None:
    install("acme", grouped(("acme.go", function)))
    done = lmcache(child_environment, "completion", "bash")
    assert done.returncode == 0
    assert "--limit-gb" in done.stdout
    assert "acme" in done.stdout
    assert lmcache(child_environment, "acme", "go").stdout == "acme ran\n"


def test_what_is_blocked_is_not_said_to_be_missing(child_environment: Environment) -> None:
    done = lmcache(child_environment, "--no-plugin", "tools", "quota", "set")
    assert "plugin 'tools' is blocked by --no-plugin" in done.stderr
    assert "not installed" not in lmcache(child_environment, "--no-plugin", "tools", "--help").stdout
    done = lmcache({**child_environment, "LMCACHE_PLUGINS": "policies"}, "quota", "--help")
    assert (done.returncode, "limit what a cache salt" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ping", "kvcache"], "'lmcache ping kvcache' is not installed: pip install lmcache-tools"),
        (
            ["ping", "engin"],
            "no command is called 'ping engin'; did you mean 'ping engine'? (pip install lmcache-tools)",
        ),
        (["ping", "7"], "no command is called 'ping 7'; see `lmcache ping --help`"),
        (["config", "get"], "'lmcache config' is not installed: pip install lmcache-tools"),
        (["quota"], "'lmcache quota' is not installed: pip install lmcache-tools"),
        (["statu"], "no command is called 'statu'; did you mean 'status'? (pip install lmcache-tools)"),
    ],
)
def test_core_alone_says_what_to_install(
    arguments: list[str], says: str, only_core: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"lmcache: {says}\n"


def test_a_group_says_which_words_could_be_installed(only_core: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "  show     show what something is" in shown
    assert "  example  (pip install lmcache-tools)" in shown
