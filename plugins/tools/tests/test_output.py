"""Where pages go."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_output import add_output_flags
from lmcache_tools.output import PageOutput, output_of
from lmcache_tools.page import Line, Page

Captured = pytest.CaptureFixture[str]
ANSWER = {"objects": 3}


def output(*arguments: str) -> PageOutput:
    parser = argparse.ArgumentParser()
    add_output_flags(parser)
    return output_of(parser.parse_args(arguments))


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
    assert capsys.readouterr().out == ""


def test_a_file_holds_one_answer(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "answer"
    output("--output", str(file), "-q").show(ANSWER, page)
    assert file.read_text() == "three objects\n"
    output("--output", str(file), "--json").show(ANSWER, page)
    assert json.loads(file.read_text()) == ANSWER
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="--output holds one answer"):
        output("--output", str(file)).show_next(ANSWER, page)


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
