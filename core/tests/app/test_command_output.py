"""Where answers go."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.page import Line, Page

Captured = pytest.CaptureFixture[str]
ANSWER = {"objects": 3}


def output(*arguments: str) -> CommandOutput:
    parser = argparse.ArgumentParser()
    add_output_flags(parser)
    return CommandOutput.of(parser.parse_args(arguments))


def page() -> Page:
    return [Line("three objects")]


def test_people_and_programs(capsys: Captured) -> None:
    output().show(ANSWER, page)
    assert capsys.readouterr().out == "three objects\n"
    for flags in (["--json"], ["--format", "json"]):
        output(*flags).show(ANSWER, page)
        assert json.loads(capsys.readouterr().out) == ANSWER


def test_quiet_shows_nothing_in_either_format(capsys: Captured) -> None:
    for flags in (["-q"], ["--quiet", "--json"]):
        output(*flags).show(ANSWER, page)
        output(*flags).show_next(ANSWER, page)
        output(*flags).show_text(ANSWER, "text")
    assert capsys.readouterr().out == ""


def test_a_file_is_its_owners_alone_and_holds_one_answer(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "answer"
    file.write_text("something longer that was there before")
    file.chmod(0o644)
    output("--output", str(file), "-q").show(ANSWER, page)
    assert file.read_text() == "three objects\n"
    fresh = tmp_path / "fresh"
    output("--output", str(fresh), "--json").show(ANSWER, page)
    assert json.loads(fresh.read_text()) == ANSWER
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600
    output("--output", str(fresh)).show_text(ANSWER, "as it is")
    assert fresh.read_text() == "as it is\n"
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="--output holds one answer"):
        output("--output", str(fresh)).show_next(ANSWER, page)
    with pytest.raises(ResourceError, match=r"--output .*nowhere.* cannot be written: No such file"):
        output("--output", str(tmp_path / "nowhere" / "file")).show(ANSWER, page)


def test_answers_that_go_on_are_one_json_object_per_line(capsys: Captured) -> None:
    for _ in range(2):
        output("--json").show_next({"a": {"b": [1]}}, page)
    assert capsys.readouterr().out == '{"a": {"b": [1]}}\n' * 2


def test_a_terminal_is_drawn_on_and_the_next_answer_takes_the_place_of_the_last(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    output().show_next(ANSWER, page)
    assert capsys.readouterr().out.startswith("\x1b[H\x1b[2J")
    monkeypatch.setenv("TERM", "dumb")
    output().show(ANSWER, page)
    assert capsys.readouterr().out == "three objects\n"
