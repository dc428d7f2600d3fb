"""--plugin, --no-plugin and --safe-mode, wherever plugins are loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from core.tests.app.test_cli import Environment, lmcache
from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_line import PluginSelection, leading_selection, selection_from
from lmcache_core.app.plugins.discovery import Status
from lmcache_core.app.plugins.loading import load_plugins

Install = Callable[..., Path]
COMMAND = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_commands():
        return [Offer("{name}", "does {name}", "{name}_plugin:run")]

    def run(arguments, context):
        print("{name} runs")
        return 0
    """


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LMCACHE_PLUGINS": "a, b,", "LMCACHE_NO_PLUGINS": "c", "LMCACHE_SAFE_MODE": "TRUE"}
    assert selection_from(given) == PluginSelection(("a", "b"), ("c",), True)
    assert selection_from({}) == PluginSelection()
    with pytest.raises(ConfigError, match="LMCACHE_SAFE_MODE is 'maybe': must be true or false"):
        selection_from({"LMCACHE_SAFE_MODE": "maybe"})


def test_flags_in_front_of_a_command_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_PLUGINS", "a")
    monkeypatch.setenv("LMCACHE_SAFE_MODE", "1")
    given, rest = leading_selection(["--plugin", "b", "--plugin=c", "--no-safe-mode", "x", "--plugin", "d"])
    assert given == PluginSelection(("b", "c"), (), False)
    assert rest == ["x", "--plugin", "d"]


def test_what_a_server_uses_does_not_say_which_commands_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LMCACHE_PLUGINS", "a"), ("LMCACHE_SAFE_MODE", "1"), ("LMCACHE_NO_PLUGINS", "b")):
        monkeypatch.setenv(name, value)
    assert leading_selection(["x"]) == (PluginSelection((), ("b",), False), ["x"])


def test_in_safe_mode_nothing_of_another_distribution_is_imported(install: Install) -> None:
    mark = "from pathlib import Path\nPath(__file__).with_suffix('.imported').touch()"
    folder = install("acme", mark).parent
    install("zeta", mark, requires="lmcache-core>=99")
    (folder / "mine.py").write_text(f"LMCACHE_PLUGIN_API = 1\n{mark}")
    plugins = load_plugins(["acme", "mine.module", "absent"], safe_mode=True)
    rows = {row.candidate.name: row for row in plugins.rows()}
    assert rows["builtin"].status is Status.ACTIVE
    assert {rows[name].status for name in ("acme", "zeta")} == {Status.BLOCKED}
    assert rows["acme"].error == "blocked by safe mode"
    assert list(folder.glob("*.imported")) == []
    assert "--plugin acme is not considered in safe mode" in plugins.warnings
    with pytest.raises(ConfigError, match="L2 adapter 'acme' is not available: plugin 'acme' is blocked by safe mode"):
        plugins.offer("l2_adapter", "acme")


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({"LMCACHE_SAFE_MODE": "1"}, ()),
        pytest.param({"LMCACHE_PLUGINS": "builtin"}, (), marks=pytest.mark.slow),
        pytest.param({"LMCACHE_NO_PLUGINS": "acme"}, (), marks=pytest.mark.slow),
        pytest.param({}, ("--safe-mode",), marks=pytest.mark.slow),
        ({}, ("--plugin", "builtin")),
        pytest.param({}, ("--no-plugin", "acme"), marks=pytest.mark.slow),
    ],
)
def test_every_command_that_loads_plugins_obeys(
    install: Install, child_environment: Environment, variables: Environment, flags: tuple[str, ...]
) -> None:
    install("acme", COMMAND.format(name="acme"))
    environment = {**child_environment, **variables}
    (listed,) = [
        row
        for row in json.loads(lmcache(environment, "plugins", "list", "--json", *flags).stdout)
        if row["name"] == "acme"
    ]
    assert listed["status"] == "blocked"
    assert "blocked" in lmcache(environment, "plugins", "show", "acme", *flags).stdout
    of_commands = flags or "LMCACHE_NO_PLUGINS" in variables
    for done in (
        *([lmcache(environment, *flags, "acme")] if of_commands else []),
        lmcache(environment, "plugins", "check", "l2_adapter:acme", *flags),
        lmcache(environment, "server", "--l2-adapter", '{"type": "acme"}', "--port", "0", "--no-http", *flags),
    ):
        assert done.returncode in (2, 4), done.stderr
        assert "'acme'" in done.stderr
    assert ("does acme" in lmcache(environment, *flags, "--help").stdout) is not bool(of_commands)


@pytest.mark.parametrize(
    "command",
    [
        ("plugins", "list", "--no-plugin", "acne"),
        ("plugins", "list", "--json", "--no-plugin", "acne"),
        ("plugins", "show", "acme", "--no-plugin", "acne"),
        ("plugins", "check", "command:acme", "--no-plugin", "acne"),
        ("--no-plugin", "acne", "acme"),
        ("--no-plugin", "acne", "--help"),
    ],
)
def test_what_is_left_out_in_vain_is_said_once_and_nothing_that_a_list_shows(
    install: Install, child_environment: Environment, command: tuple[str, ...]
) -> None:
    install("acme", COMMAND.format(name="acme"))
    install("zeta", "import no_such_library")
    done = lmcache(child_environment, *command)
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warnings == ["lmcache: warning: --no-plugin acne: no plugin is called so; did you mean 'acme'?"]
    assert "zeta" not in done.stderr


def test_a_word_without_a_dot_is_not_a_module(child_environment: Environment) -> None:
    done = lmcache(child_environment, "plugins", "list", "--plugin", "mis")
    assert done.returncode == 2
    assert "--plugin mis: no plugin is called so" in done.stderr
    assert "(a module is named with a dot: package.module)" in done.stderr


CHATTY = """
    print("imported")
    from lmcache_core import Offer, hookimpl
    @hookimpl
    def lmcache_l2_adapters():
        print("asked")
        return [Offer("acme", "s", "acme_work:open_it", "acme_work:Settings")]
    """


def test_what_a_plugin_prints_is_not_part_of_an_answer(install: Install, child_environment: Environment) -> None:
    folder = install("acme", CHATTY).parent
    (folder / "acme_work.py").write_text(
        "from lmcache_core import PluginSettings\nprint('settings')\nclass Settings(PluginSettings): pass\n"
    )
    listed = lmcache(child_environment, "plugins", "list", "--json")
    assert "acme" in [each["name"] for each in json.loads(listed.stdout)]
    assert listed.stderr == "imported\nasked\n"
    shown = lmcache(child_environment, "plugins", "show", "l2_adapter:acme", "--schema")
    assert json.loads(shown.stdout)["type"] == "object"
    assert shown.stderr == "imported\nasked\nsettings\n"
    package = folder / "chat"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ty.py").write_text("LMCACHE_PLUGIN_API = 1\nprint('named')\n")
    named = lmcache(child_environment, "plugins", "list", "--json", "--plugin", "chat.ty")
    assert "chat.ty" in [each["name"] for each in json.loads(named.stdout)]
    assert named.stderr == "named\n"


def test_without_a_selection_it_is_there(install: Install, child_environment: Environment) -> None:
    install("acme", COMMAND.format(name="acme"))
    assert lmcache(child_environment, "acme").stdout == "acme runs\n"
    assert "does acme" in lmcache(child_environment, "--help").stdout


def test_the_flags_of_a_core_command_follow_it(child_environment: Environment) -> None:
    done = lmcache(child_environment, "--safe-mode", "server")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "give it behind the command: lmcache server ... --safe-mode" in done.stderr
