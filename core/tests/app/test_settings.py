"""Settings: which source wins, and what a wrong one is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import ServerFlags, advice, read_settings
from lmcache_core.app.settings import GROUPS, ServerSettings, is_loopback


def settings(*arguments: str) -> ServerSettings:
    return read_settings(ServerFlags().given(arguments))


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_enough() -> None:
    given = settings()
    assert (given.host, given.port, given.chunk_size, given.l1_size_gb) == ("localhost", 5555, 256, 5.0)
    assert (given.hash_algorithm, given.supported_transfer_mode, given.eviction_policy) == ("blake3", "auto", "LRU")
    assert given.l2_adapter == ()


@pytest.mark.parametrize(("text", "meant"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")])
def test_yaml_may_say_on_and_off(tmp_path: Path, text: str, meant: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"native: {text}")
    assert settings("--config", str(path)).native == meant
    assert "--native is 'maybe'" in refusal("--native", "maybe")


def test_pins_leave_room_below_the_watermark() -> None:
    said = refusal("--l1-pin-max-ratio", "0.8")
    assert "--l1-pin-max-ratio 0.8 is not below --eviction-trigger-watermark 0.8" in said
    assert "lower the first or raise the second" in said
    assert "0.25 is not below --eviction-trigger-watermark 0.2:" in refusal("--eviction-trigger-watermark", "0.2")
    assert settings("--l1-pin-max-ratio", "0", "--eviction-trigger-watermark", "0.01").l1_pin_max_ratio == 0


def test_every_setting_is_in_one_group_and_has_a_description() -> None:
    grouped = [name for group in GROUPS for name in group.model_fields]
    assert sorted(grouped) == sorted(ServerSettings.model_fields)
    assert all(field.description for field in ServerSettings.model_fields.values())


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(".yaml", "port: 1\nhost: file\nchunk_size: 3\n"), (".toml", 'port=1\nhost="file"\nchunk_size=3')],
)
def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, text: str
) -> None:
    path = tmp_path / f"settings{suffix}"
    path.write_text(text)
    monkeypatch.setenv("LMCACHE_PORT", "2")
    monkeypatch.setenv("LMCACHE_HOST", "environment")
    given = settings("--config", str(path), "--port", "3")
    assert (given.port, given.host, given.chunk_size, given.max_workers) == (3, "environment", 3, 1)


def test_the_file_can_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    path.write_text("chunk_size = 16")
    monkeypatch.setenv("LMCACHE_CONFIG", str(path))
    assert settings().chunk_size == 16


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lmcache.toml"
    file.write_text("port = 1\nchunk_size = 64\nl1_size_gb = 2.0\n")
    monkeypatch.setenv("LMCACHE_CONFIG", str(file))
    monkeypatch.setenv("LMCACHE_PORT", "2")
    monkeypatch.setenv("lmcache_chunk_size", "32")
    given = read_settings({"port": 3})
    assert (given.port, given.chunk_size, given.l1_size_gb) == (3, 32, 2.0)


def test_settings_that_are_made_by_hand_are_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_PORT", "2")
    nothing: dict[str, Any] = {}
    misspelt: dict[str, Any] = {"l1_sise_gb": 3.0}
    assert ServerSettings(**nothing).port == 5555
    with pytest.raises(ValidationError, match="l1_sise_gb"):
        ServerSettings(**misspelt)


def test_switches_go_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_DISABLE_LOGGING", "true")
    assert settings().disable_logging
    assert not settings("--no-disable-logging").disable_logging
    assert not settings("--no-l1-shared-memory").l1_shared_memory


FS: dict[str, Any] = {"type": "fs", "base_path": "/x"}
MEMORY: dict[str, Any] = {"type": "memory"}


def test_adapters_from_the_command_line() -> None:
    given = settings("--l2-adapter", '{"type": "fs", "base_path": "/x"}', "--l2-adapter", '{"type":"memory"}')
    assert given.l2_adapter == (FS, MEMORY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"type": "memory"}', (MEMORY,)), ('[{"type": "fs", "base_path": "/x"}, {"type": "memory"}]', (FS, MEMORY))],
)
def test_adapters_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[dict[str, Any], ...]
) -> None:
    monkeypatch.setenv("LMCACHE_L2_ADAPTER", text)
    assert settings().l2_adapter == expected


def test_adapters_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("l2_adapter:\n  - {type: fs, base_path: /x}\n  - type: memory\n")
    assert settings("--config", str(path)).l2_adapter == (FS, MEMORY)


def test_plugin_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_PLUGINS", "fs, s3,")
    monkeypatch.setenv("LMCACHE_NO_PLUGINS", "dax")
    assert (settings().plugins, settings().no_plugins) == (("fs", "s3"), ("dax",))
    assert settings("--plugin", "a", "--plugin", "b").plugins == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prot", "1"], "no flag is called --prot; did you mean --port?"),
        (["--zzz"], "no flag is called --zzz; see `lmcache server --help`"),
        (["--por", "1"], "no flag is called --por; did you mean --port?"),
        (["stray"], "'stray' is not expected here"),
        (["--port"], "--port: expected one argument"),
        (["--p2p-listen-url", "x"], "--p2p-listen-url is a flag of the public LMCache server"),
        (["--l1-init-size-gb", "-1"], "--l1-init-size-gb is '-1': input should be"),
        (["--l1-numa", "both"], "--l1-numa is 'both'"),
        (["--port", "x"], "--port is 'x': input should be a valid integer"),
        (["--port", "65536"], "--port is '65536': input should be less than or equal to 65535"),
        (["--max-workers", "0"], "--max-workers is '0': input should be greater than or equal to 1"),
        (["--hash-algorithm", "md5"], "--hash-algorithm is 'md5': input should be 'blake3' or 'sha256_cbor'"),
        (["--l1-size-gb", "nan"], "--l1-size-gb is 'nan': input should be"),
        (["--l1-align-bytes", "5000"], "--l1-align-bytes is '5000': must be a power of two, such as 8192"),
        (["--eviction-trigger-watermark", "0"], "input should be greater than 0"),
        (["--eviction-ratio", "1.5"], "input should be less than or equal to 1"),
        (["--shm-name", "a/b"], "--shm-name is 'a/b'"),
        (["--l2-adapter", "{"], "--l2-adapter: not JSON"),
        (["--l2-adapter", "3"], "--l2-adapter: [0] is not a JSON object"),
        (["--l2-adapter", '{"type":"a","type":"b"}'], "--l2-adapter: key 'type' is given twice"),
        (["--plugin", "fs", "--no-plugin", "fs"], "--plugin and --no-plugin both name 'fs'"),
        (["--port", "a", "--chunk-size", "b", "--max-workers", "c", "--drain-seconds", "d"], "; and 1 more"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_what_is_allowed(arguments: list[str], says: str) -> None:
    assert says in refusal(*arguments)


def test_a_wrong_variable_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "many")
    assert refusal().startswith("LMCACHE_CHUNK_SIZE is 'many': ")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "chunk_sise: 3", "a.yaml: no setting is called 'chunk_sise'; did you mean 'chunk_size'?"),
        ("a.yaml", "chunk-size: 3", "did you mean 'chunk_size'?"),
        ("a.yaml", "chunk_size: many", "a.yaml: key 'chunk_size' is 'many'"),
        ("a.yaml", "a: [", "line 1: not YAML"),
        ("a.yaml", "- 1", "expected keys and values"),
        ("a.yaml", "config: x", "key 'config' makes no sense"),
        ("a.yaml", "!!python/object/apply:os.getpid []", "not YAML"),
        ("a.toml", "a = ", "not TOML"),
        ("a.ini", "", "must end in .yaml, .yml or .toml"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_key(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    assert says in refusal("--config", str(tmp_path / name))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal("--config", str(tmp_path / "a.yaml")).endswith("a.yaml: cannot be read: No such file or directory")


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing\n")
    assert settings("--config", str(tmp_path / "a.yaml")).port == 5555


def test_what_an_adapter_was_given_is_not_repeated_in_messages() -> None:
    assert "hunter2" not in refusal("--l2-adapter", '{"type": "s3", "key": "hunter2"')


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "*", "cache.example", "127.0.0.1.example"])
def test_hosts_that_others_can_reach(host: str) -> None:
    assert not is_loopback(host)


def test_kubernetes_links_to_a_service_called_lmcache_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {
        "LMCACHE_PORT": "tcp://10.0.0.7:5555",
        "LMCACHE_SERVICE_HOST": "10.0.0.7",
        "LMCACHE_SERVICE_PORT_ENGINE": "5555",
        "LMCACHE_PORT_5555_TCP_ADDR": "10.0.0.7",
    }
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    assert settings().port == 5555
    assert advice(settings(), links) == []


def test_unknown_variables_are_warnings_with_the_nearest_known_one() -> None:
    given = {
        "LMCACHE_CHUNK_SISE": "1",
        "LMCACHE_ZZZ": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_CHECK": "{}",
        "LMCACHE_CHECK_REPORT": "/tmp/report",
        "LMCACHE_PORT": "1",
        "HOME": "/",
    }
    assert advice(settings(), given) == [
        "LMCACHE_CHUNK_SISE is set, but no setting is called so; did you mean LMCACHE_CHUNK_SIZE?",
        "LMCACHE_ZZZ is set, but no setting is called so",
    ]


def test_an_engine_port_that_others_can_reach_is_a_warning() -> None:
    (line,) = advice(settings("--host", "0.0.0.0"), {})
    assert "no passwords" in line
