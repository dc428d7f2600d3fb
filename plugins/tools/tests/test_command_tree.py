"""What the shell completes, what the reference says, and how `help` leads to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lmcache_core.app.cli import main
from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.command_reference import reference
from lmcache_tools.command_tree import core_parsers

Captured = pytest.CaptureFixture[str]
Install = object
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

COMMAND = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_commands():
        return [Offer("frobnicate", "does 100 % of it", "acme_plugin:run")]
    """
COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMP_LINE="${*:2}"; COMP_POINT=${#COMP_LINE}
function=$(complete -p lmcache | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_every_command_has_its_parsers_and_they_say_what_they_are_for() -> None:
    programs = [parser.prog for parser in core_parsers()]
    assert len(programs) == len(set(programs))
    assert {program.split(" ")[1] for program in programs} == set(CORE_COMMANDS)
    for parser in core_parsers():
        assert parser.description
        for action in parser._actions:
            assert action.help, (parser.prog, action.dest)


def test_bash_completes_commands_flags_and_choices(capsys: Captured, tmp_path: Path, install: object) -> None:
    install("acme", COMMAND)  # type: ignore[operator]
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "lmcache.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> set[str]:
        command = ["bash", "-c", COMPLETE, "bash", str(script), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return set(done.stdout.split())

    assert completed("lmcache", "") >= {*CORE_COMMANDS, "frobnicate", "help"}
    assert completed("lmcache", "quota", "") == {"set", "get", "list", "delete"}
    assert completed("lmcache", "status", "--w") == {"--watch"}
    assert completed("lmcache", "status", "--format", "") == {"terminal", "json"}
    assert completed("lmcache", "plugins", "check", "--setting") == {"--settings", "--settings-file"}
    assert completed("lmcache", "server", "--l1-size") == {"--l1-size-gb"}
    assert completed("lmcache", "help", "exit") == {"exit-codes"}
    for flag in ("--config", "--runtime-plugin-locations"):
        assert completed("lmcache", "server", flag, str(script)[:-2]) == {str(script)}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_the_same(shell: str, capsys: Captured, tmp_path: Path, install: object) -> None:
    install("acme", COMMAND)  # type: ignore[operator]
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    text = script.read_text()
    for word in (*CORE_COMMANDS, "frobnicate", "--watch".lstrip("-"), "eviction-trigger-watermark"):
        assert word in text
    if found := shutil.which(shell):
        subprocess.run([found, "-n", str(script)], env={**os.environ}, timeout=30, check=True)


def test_help_leads_to_every_command(capsys: Captured) -> None:
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    for name, about in CORE_COMMANDS.items():
        assert f"  {name} " in listed
        assert about in listed
    with pytest.raises(SystemExit) as left:
        main(["help", "quota", "set"])
    assert left.value.code == 0
    assert "--limit-gb" in capsys.readouterr().out
    assert main(["help", "quota"]) == 0
    assert "usage: lmcache quota COMMAND" in capsys.readouterr().out
    assert main(["help", "nonsense"]) == 2
    assert main(["help", "help"]) == 0
    assert "usage: lmcache COMMAND" in capsys.readouterr().out


def test_exit_codes_are_documented(capsys: Captured) -> None:
    assert main(["help", "exit-codes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["CODE", *(str(int(code)) for code in ExitCode)]


def test_the_reference_is_up_to_date() -> None:
    remedy = "write it again: python -m lmcache_tools.command_reference > docs/reference/cli.md"
    text = reference()
    assert DOCUMENT.read_text() == text, remedy
    assert "%(" not in text, "the reference has defaults, not the places where argparse puts them"
