"""`lmcache trace info` and `convert`, and what their command line refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmcache_core import CommandContext, ConfigError, ResourceError
from lmcache_observability.trace.command import run_trace
from lmcache_observability.trace.conversion import FORMS
from lmcache_observability.trace.format import MAGIC, encode_record, frame
from lmcache_observability.trace.records import Began, EventRecord, Lookup, Record, Stored
from plugins.observability.tests.trace.stand_ins import record, request


def run(*arguments: str) -> int:
    return run_trace(arguments, CommandContext(NoPlugins()))


class NoPlugins:
    """Commands of a recording ask for none."""

    def offers(self, kind: str) -> Any:
        raise AssertionError

    def open(self, kind: str, name: str, settings: Any) -> Any:
        raise AssertionError


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    events = [
        *request("a", [1, 2, 3], 0, at=1000.0),
        *request("b", [1, 2, 4], 2, at=1001.0),
        *request("c", [1, 2, 3], 1, at=1002.5, salt="tenant"),
        *request("d", [1, 2, 3], 3, at=1003.5),
        *request("e", [1, 2, 3], 0, at=1004.5, model="other"),
    ]
    return record(tmp_path / "t.lct", events, salts="plain")


def test_info_says_what_is_in_it(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", str(recording), "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert info["models"] == {"m": 4, "other": 1}
    assert info["salts"] == {"": 4, "tenant": 1}
    assert info["records"] == {"Lookup": 5, "Answer": 5, "Stored": 4, "Retrieved": 3, "Ended": 5}
    assert (info["requested_chunks"], info["distinct_chunks"]) == (15, 4 + 3 + 3)
    assert (info["hit_chunks"], info["hit_rate"]) == (6, 6 / 15)
    assert info["ceiling"] == (0 + 2 + 0 + 3 + 0) / 15
    assert (info["level"], info["chunk_tokens"], info["closed"], info["torn_bytes"]) == ("storage", 256, True, 0)
    assert info["seconds"] == pytest.approx(4.54)


def test_info_for_people(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", str(recording)) == 0
    out = capsys.readouterr().out
    assert "40.0 % (6 chunks, 0 from L2)" in out
    assert "_default 4, tenant 1" in out
    assert "missing    nothing" in out


def test_a_torn_recording_is_read_as_far_as_it_goes(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording.write_bytes(recording.read_bytes()[:-3])
    assert run("info", str(recording)) == 0
    out = capsys.readouterr().out
    assert "are torn" in out
    assert "not ended in order" in out


def test_names_cannot_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "t", request("a", [1], 0, model="\x1b[31mred\nline"), salts="plain")
    assert run("info", str(path)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nline" not in out


def test_requests_for_the_simulator(recording: Path, tmp_path: Path) -> None:
    assert run("convert", str(recording), "--to", "simulate", "-o", str(tmp_path / "out")) == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == [0, 1000, 2500, 3500, 4500]
    assert [line["hash_ids"] for line in lines] == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 1, 2], [4, 5, 6]]
    assert [line.get("salt") for line in lines] == [None, None, "tenant", None, None]


def test_lines_as_of_the_log_of_lookups(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", str(recording), "--to", "lookup-hash") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["chunk_hashes"]) for line in lines] == [3] * 5
    assert (lines[0]["chunk_size"], lines[0]["seq_len"], lines[0]["timestamp"]) == (256, 768, 1000.0)


@pytest.mark.parametrize("level", ["storage", "events"])
def test_every_record_as_json(level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "t", request("a", [1, 2], 1), level=level)
    assert run("convert", str(path), "--to", "jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [line["record"] for line in lines]
    assert names == ["Began", "Lookup", "Answer", "Retrieved", "Stored", "Ended", "Closed"]
    assert len(lines[1]["chunk_hashes"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof", "F"], "did you mean 'trace info'"),
        (["nothing"], "known: info, convert, replay"),
        (["info"], "FILE"),
        (["info", "F", "--jsn"], "did you mean --json"),
        (["convert", "F"], "--to"),
        (["convert", "F", "--to", "csv"], "--to"),
        (["replay", "F", "--l1-size-gb", "4"], "behind `--`"),
        (["replay", "F", "--speed", "0"], "number above 0"),
        (["replay", "F", "--speed", "inf"], "number above 0"),
        (["replay", "F", "--max-requests", "-1"], "whole number"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        run(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_help_is_there_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run("--help")
    assert "replay" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        run("replay", "--help")
    assert "--speed" in capsys.readouterr().out


def test_files_that_are_not_recordings_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match="text: it is not a recording"):
        run("info", str(tmp_path / "text"))
    with pytest.raises(ResourceError, match="cannot be read"):
        run("info", str(tmp_path / "nothing"))


def test_a_recording_is_not_written_over(recording: Path) -> None:
    before = recording.read_bytes()
    with pytest.raises(ConfigError, match="the recording itself"):
        run("convert", str(recording), "--to", "jsonl", "-o", str(recording))
    with pytest.raises(ResourceError, match="cannot be written"):
        run("convert", str(recording), "--to", "jsonl", "-o", str(recording.parent / "nowhere" / "x"))
    assert recording.read_bytes() == before


def test_a_recording_without_lookups_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no lookup"):
        run("replay", str(record(tmp_path / "t", [])))


def test_ports_of_a_replays_server_are_its_own(recording: Path) -> None:
    with pytest.raises(ConfigError, match=r"--port: .*--engine"):
        run("replay", str(recording), "--", "--port", "5555")
    with pytest.raises(ConfigError, match="leave out"):
        run("replay", str(recording), "--engine", "tcp://127.0.0.1:1", "--", "--l1-size-gb", "1")


def written(path: Path, *records: Record | bytes) -> str:
    """A recording that anybody may have made."""
    began = Began(1.0, "\x1b[31mstorage", "boot", "\x1b[2J", 256)
    encoded = [each if isinstance(each, bytes) else encode_record(each) for each in (began, *records)]
    path.write_bytes(MAGIC + frame(encoded))
    return str(path)


def lookup(*, at: float = 1.0, prompt_tokens: int = 256, known: int = 0) -> Lookup:
    return Lookup(at, "\x1b[31mr\n", "\x1b[31mm", "", 1, prompt_tokens, known, b"h" * 32)


@pytest.mark.parametrize(
    "damaged",
    [
        lookup(at=float("nan")),
        lookup(at=float("inf")),
        lookup(at=1e300),
        lookup(prompt_tokens=-1),
        lookup(known=7),
        Stored(1.0, "r", "m", "", 0, -3, 1, 1, 0.1),
    ],
)
def test_what_no_server_wrote_is_named(damaged: Record, tmp_path: Path) -> None:
    path = written(tmp_path / "t", damaged)
    for arguments in (["info", path], ["convert", path, "--to", "simulate"], ["replay", path]):
        with pytest.raises(ConfigError, match="damaged record of type") as refused:
            run(*arguments)
        assert str(refused.value).isprintable()


NESTED = b"\x94\xa1T\xcb\x3f\xf0\0\0\0\0\0\0\xa1e\x81\xa1k" + b"\x91" * 900 + b"\x90"


def test_whatever_a_recording_holds_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"n": float("nan"), "b": b"\0", "e": msgspec.msgpack.Ext(5, b"x"), "t": datetime.now(UTC), "d": {1: [2]}}
    path = written(tmp_path / "t", lookup(), EventRecord(1.0, "\x1b[31me", fields), NESTED)
    for arguments in (["info", path], ["info", path, "--json"], *(["convert", path, "--to", form] for form in FORMS)):
        run(*arguments)
        out = capsys.readouterr().out
        assert "\x1b" not in out
        if "--to" in arguments:
            lines = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
            assert len(lines) == (4 if "jsonl" in arguments else 1)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(ResourceError, match="is not a file"):
            run("info", str(path))
