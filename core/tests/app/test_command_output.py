"""Where answers go."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path

import pytest

from lmcache_client.errors import ResourceError
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags

Captured = pytest.CaptureFixture[str]
ANSWER = {"objects": 3}
TEXT = "three objects"


def output(*arguments: str) -> CommandOutput:
    parser = argparse.ArgumentParser()
    add_output_flags(parser)
    return CommandOutput.of(parser.parse_args(arguments))


def test_people_and_programs(capsys: Captured) -> None:
    output().show(ANSWER, TEXT)
    assert capsys.readouterr().out == "three objects\n"
    for flags in (["--json"], ["--format", "json"]):
        output(*flags).show(ANSWER, TEXT)
        assert json.loads(capsys.readouterr().out) == ANSWER


def test_quiet_shows_nothing_in_either_format(capsys: Captured) -> None:
    for flags in (["-q"], ["--quiet", "--json"]):
        output(*flags).show(ANSWER, TEXT)
    assert capsys.readouterr().out == ""


def test_a_file_is_its_owners_alone_and_holds_one_answer(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "answer"
    file.write_text("something longer that was there before")
    file.chmod(0o644)
    output("--output", str(file), "-q").show(ANSWER, TEXT)
    assert file.read_text() == "three objects\n"
    fresh = tmp_path / "fresh"
    output("--output", str(fresh), "--json").show(ANSWER, TEXT)
    assert json.loads(fresh.read_text()) == ANSWER
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600
    output("--output", str(fresh)).show(ANSWER, "as it is")
    assert fresh.read_text() == "as it is\n"
    assert capsys.readouterr().out == ""
    with pytest.raises(ResourceError, match=r"--output .*nowhere.* cannot be written: No such file"):
        output("--output", str(tmp_path / "nowhere" / "file")).show(ANSWER, TEXT)
