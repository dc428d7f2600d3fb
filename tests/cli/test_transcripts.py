"""What docs show of commands can be run, and the script that renews it changes nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from lmcache_tools.command_tree import every_parser
from scripts import transcripts


def test_pages_have_transcripts() -> None:
    assert {"doctor.md", "inspect.md"} <= {page.name for page in transcripts.pages()}


@pytest.mark.parametrize("page", transcripts.pages(), ids=lambda page: page.name)
def test_every_command_in_a_transcript_is_one_and_was_run(page: Path) -> None:
    parsers = {parser.prog: parser for parser in every_parser()}
    text = page.read_text()
    commands = transcripts.commands_of(text)
    assert commands
    assert not re.search(r"^\$ (?:.*\\\n)*.*\n(?:```|\$ )", text, re.MULTILINE), "run scripts.transcripts"
    for command in commands:
        words = shlex.split(command)
        name = " ".join(words[:3]) if " ".join(words[:3]) in parsers else " ".join(words[:2])
        parsers[name].parse_args(words[len(name.split(" ")) :])


def test_only_what_commands_say_is_replaced() -> None:
    page = "before\n<!-- transcript -->\n```console\n$ lmcache version\nlmcache-core 0.0\n```\nafter $ lmcache x\n"
    again = transcripts.renewed(page, {"lmcache-core": "lmcache-core"}, quiet_environment())
    assert again.startswith("before\n<!-- transcript -->\n```console\n$ lmcache version\nlmcache-core ")
    assert again.endswith("\n```\nafter $ lmcache x\n")
    assert "lmcache-core 0.0\n" not in again
    failing = page.replace("version", "versio")
    assert "[exit code 2]" in transcripts.renewed(failing, {}, quiet_environment())
    with pytest.raises(ValueError, match="only lmcache is run here"):
        transcripts.renewed(page.replace("$ lmcache", "$ rm"), {}, {})
