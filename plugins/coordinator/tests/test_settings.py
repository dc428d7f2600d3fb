"""The variables and flags that coordinators are known by, with their defaults, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError
from lmcache_coordinator.settings import PREFIX, parser, read_settings
from lmcache_core.app.console.exit_code import ExitCode
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

# Suffix of the variable, default, another value, and what that becomes.
VARIABLES = [
    ("HOST", "127.0.0.1", "::1", "::1"),  # not 0.0.0.0: closed by default
    ("PORT", 9300, "9301", 9301),
    ("INSTANCE_TIMEOUT", 30, "7.5", 7.5),
    ("HEALTH_CHECK_INTERVAL", 10, "0", 0),
    ("EVICTION_CHECK_INTERVAL", 5, "0", 0),
    ("EVICTION_RATIO", 0.2, "1", 1.0),
    ("TRIGGER_WATERMARK", 1.0, "0.9", 0.9),
    ("BLEND_CHUNK_SIZE", 256, "256", 256),
    ("BLEND_PROBE_STRIDE", 1, "1", 1),
    ("ENABLE_STARTUP_RESYNC", True, "False", False),
    ("RESYNC_POLL_INTERVAL", 1, "2", 2),
    ("RESYNC_MAX_WAIT", 60, "0", 0),
    ("RESYNC_PAGE_SIZE", 1000, "5000", 5000),
]
FLAGS = [name for name, *_ in VARIABLES[:9]]


@pytest.mark.parametrize(("suffix", "default", "text", "value"), VARIABLES)
def test_each_variable_has_its_default_and_is_read(
    suffix: str, default: object, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(read_settings([]), suffix.lower()) == default
    monkeypatch.setenv(PREFIX + suffix, text)
    assert getattr(read_settings([]), suffix.lower()) == value


@pytest.mark.parametrize("suffix", FLAGS)
def test_a_flag_wins_over_its_variable(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = next((text, value) for name, _, text, value in VARIABLES if name == suffix)
    monkeypatch.setenv(PREFIX + suffix, "nonsense")
    assert getattr(read_settings([f"--{suffix.lower().replace('_', '-')}", text]), suffix.lower()) == value


def test_the_newer_name_of_a_flag() -> None:
    assert read_settings(["--chunk-size", "256"]).blend_chunk_size == 256


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e9", "soon"])
@pytest.mark.parametrize("name", ["health_check_interval", "eviction_check_interval", "instance_timeout"])
def test_an_interval_that_is_none_names_its_flag_or_variable(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"^{flag} '{text}'"):
        read_settings([f"{flag}={text}"])
    monkeypatch.setenv(PREFIX + name.upper(), text)
    with pytest.raises(ConfigError, match=f"^{PREFIX}{name.upper()} '{text}'"):
        read_settings([])


def test_help_has_every_flag_with_its_default() -> None:
    text = parser().format_help()
    for suffix, default, *_ in VARIABLES:
        assert f"--{suffix.lower().replace('_', '-')}" in text
        assert f"(default: {default:g})" if isinstance(default, float) else f"(default: {default})" in text


def test_a_policy_that_is_not_installed_ends_the_start_with_those_that_are(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    command = [sys.executable, "-m", "lmcache_core", "coordinator", "--state", str(state), "--eviction-policy", "Nope"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "--eviction-policy: " in done.stderr
    assert "no eviction policy is called 'Nope'. Installed: " in done.stderr
    assert "LRU (lmcache-core" in done.stderr
    assert not state.exists()


def test_a_port_in_use_is_named_by_its_flag(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        again = [sys.executable, "-m", "lmcache_core", "coordinator", *coordinator.flags]
        done = subprocess.run(again, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.RESOURCE
    assert f"--host 127.0.0.1 --port {coordinator.port}: cannot be bound" in done.stderr
    assert "---" not in done.stderr
