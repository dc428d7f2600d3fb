"""`lmcache config show`."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.app.cli import main
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.settings import ServerSettings
from lmcache_tools.commands.config_show import as_flags, toml_value

Captured = pytest.CaptureFixture[str]
ADAPTER = '{"type": "memory", "max_size_gb": 2.5}'
FLAGS = ("--l1-size-gb", "3", "--no-l1-use-lazy", "--l2-adapter", ADAPTER, "--quota", '{"a b": 1, "it\'s": 0.5}')


def shown(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert main(["config", "show", "--json", *arguments]) == 0
    settings: dict[str, Any] = json.loads(capsys.readouterr().out)["settings"]
    return settings


def words_of(command: str) -> list[str]:
    """As a shell reads it: a backslash at the end of a line joins it with the next."""
    return shlex.split(command.replace(" \\\n  ", " "))


def test_every_setting_and_who_gave_it(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "lmcache.toml"
    file.write_text("chunk_size = 128\nport = 1\n")
    monkeypatch.setenv("LMCACHE_PORT", "7000")
    settings = shown(capsys, "--config", str(file), *FLAGS)
    assert set(settings) >= set(ServerSettings.model_fields)
    expected = {
        "chunk_size": (128, "file", str(file)),
        "port": (7000, "environment", "LMCACHE_PORT"),
        "l1_size_gb": (3.0, "flag", "--l1-size-gb"),
        "host": ("localhost", "default", ""),
        "l2_adapter": ([json.loads(ADAPTER)], "flag", "--l2-adapter"),
    }
    for name, (value, source, given_by) in expected.items():
        row = settings[name]
        assert (row["value"], row["source"], row["given_by"]) == (value, source, given_by), name
    assert settings["port"]["default"] == 5555


def test_for_people(capsys: Captured) -> None:
    assert main(["config", "show", "--changed", *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert [line.split()[0] for line in lines[1:]] == ["--l1-size-gb", "--l1-use-lazy", "--quota", "--l2-adapter"]
    assert lines[2].split()[1] == "off"
    assert main(["config", "show", "--changed"]) == 0
    assert capsys.readouterr().out == "every setting has its default\n"


def test_as_flags_says_the_same(capsys: Captured) -> None:
    assert main(["config", "show", "--as-flags", *FLAGS]) == 0
    words = words_of(capsys.readouterr().out)
    assert words[:2] == ["lmcache", "server"]
    again = read_settings(ServerFlags().given(words[2:]))
    assert again == read_settings(ServerFlags().given(FLAGS))


def test_flags_of_plugins_are_among_them(capsys: Captured) -> None:
    assert main(["config", "show", "--as-flags", "--http-port", "5"]) == 0
    assert words_of(capsys.readouterr().out)[2:] == ["--http-port", "5"]


def test_as_toml_says_the_same(capsys: Captured, tmp_path: Path) -> None:
    assert main(["config", "show", "--as-toml", *FLAGS]) == 0
    file = tmp_path / "again.toml"
    file.write_text(capsys.readouterr().out)
    again = read_settings({"config": str(file)})
    for name, value in read_settings(ServerFlags().given(FLAGS)):
        assert name == "config" or getattr(again, name) == value, name


def test_secrets_are_hidden_and_named(capsys: Captured) -> None:
    adapter = '{"type": "memory", "password": "hunter2-hunter2"}'
    for way in ("--as-flags", "--as-toml", "--json", "--changed"):
        assert main(["config", "show", way, "--l2-adapter", adapter]) == 0
        said = capsys.readouterr()
        assert "hunter2" not in said.out + said.err
        assert ("put back the secrets that are hidden in l2_adapter" in said.err) is (
            way in ("--as-flags", "--as-toml")
        )


_SCALARS = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)


@given(_VALUES)
def test_any_value_is_toml(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_a_flag(text: str) -> None:
    (command,) = as_flags([("instance_id", text), ("config", None)], {"instance_id": "--instance-id"})
    words = words_of(command)
    assert ServerFlags().given(words[2:]) == {"instance_id": text}


def test_mistakes(capsys: Captured) -> None:
    for arguments, says in (
        (["--as-flags", "--as-toml"], "not allowed with argument"),
        (["--chunk-size", "0"], "--chunk-size is '0'"),
        (["--otlp-endpont", "x"], "no flag is called --otlp-endpont; did you mean --otlp-endpoint?"),
    ):
        assert main(["config", "show", *arguments]) != 0
        assert says in capsys.readouterr().err
