"""What `lmcache doctor` says of a coordinator on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lmcache_coordinator.doctor import check
from lmcache_coordinator.settings import PREFIX
from plugins.coordinator.tests.coordinator_process import free_port


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(f"{PREFIX}PORT", str(free_port()))
    monkeypatch.setenv(f"{PREFIX}STATE", str(tmp_path / "state.db"))
    return monkeypatch


def found() -> list[tuple[str, str]]:
    return [(result.level, result.text) for result in check(None)]


def test_a_machine_without_one_is_not_spoken_of() -> None:
    assert found() == []


def test_one_that_can_start(variables: pytest.MonkeyPatch) -> None:
    ((level, text),) = found()
    assert level == "ok"
    assert text.startswith("127.0.0.1:")


def test_a_variable_that_is_refused_is_named(variables: pytest.MonkeyPatch) -> None:
    variables.setenv(f"{PREFIX}EVICTION_RATIO", "2")
    ((level, text),) = found()
    assert level == "fail"
    assert text.startswith(f"{PREFIX}EVICTION_RATIO '2'")


def test_a_port_in_use(variables: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        variables.setenv(f"{PREFIX}PORT", str(other.getsockname()[1]))
        assert [level for level, _ in found()] == ["warn"]


def test_states_that_are_lost_or_cannot_be_written(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variables.setenv(f"{PREFIX}STATE", "memory")
    assert ("warn", "quotas and secrets are lost at the end") in found()
    for prefix in ("", "sqlite:"):
        variables.setenv(f"{PREFIX}STATE", f"{prefix}{tmp_path / 'absent' / 'state.db'}")
        assert ("fail", f"{tmp_path / 'absent'} cannot be written") in found()


def test_tokens_that_others_may_read_or_that_are_none(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-the-test member\n")
    tokens.chmod(0o644)
    variables.setenv(f"{PREFIX}TOKEN_FILE", str(tokens))
    assert ("warn", f"{tokens}: other users of this machine may read the tokens") in found()
    tokens.unlink()
    ((level, text),) = found()
    assert level == "fail"
    assert str(tokens) in text
