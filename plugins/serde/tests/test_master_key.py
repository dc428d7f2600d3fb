"""Where keys come from, and what is said when there is none."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from lmcache_core import ConfigError, ResourceError
from lmcache_serde.aesgcm import AesGcmSettings, open_aesgcm
from lmcache_serde.master_key import KeySource, MasterKey, read_key
from plugins.serde.tests.round_trip import MASTER, OTHER_MASTER

RAW = bytes.fromhex(MASTER)
WANTED = MasterKey.of(RAW)


@pytest.mark.parametrize(
    "content",
    [MASTER.encode(), MASTER.upper().encode() + b"\n", b"  " + MASTER.encode(), base64.b64encode(RAW) + b"\n", RAW],
)
def test_a_file_holds_hexadecimal_digits_base64_or_the_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    assert read_key(KeySource(file=path), "keys[0]") == WANTED


def test_a_variable_and_a_value_give_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_KEY", f"{MASTER}\n")
    assert read_key(KeySource(env="KV_KEY"), "keys[0]") == WANTED
    assert read_key(KeySource.model_validate({"value": base64.b64encode(RAW).decode()}), "keys[0]") == WANTED


@pytest.mark.parametrize(
    "value",
    ["", " ", MASTER[:-2], MASTER + "00", "correct horse battery staple ...", "a" * 32, "zz" * 32, "00" * 32, "é" * 16],
)
def test_what_is_not_a_key_is_refused_with_the_source_and_a_remedy_and_is_not_shown(value: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(value)
    sources = [KeySource(file=path), KeySource.model_validate({"value": value})]
    for number, source in enumerate(sources):
        with pytest.raises(ConfigError, match=r"openssl rand -hex 32") as raised:
            read_key(source, f"keys[{number}]")
        assert f"keys[{number}]" in str(raised.value)
        assert not value.strip() or value.strip() not in str(raised.value)


def test_a_source_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KV_KEY", raising=False)
    with pytest.raises(ResourceError, match=r"keys\[1\].env: .*'KV_KEY'"):
        read_key(KeySource(env="KV_KEY"), "keys[1]")
    with pytest.raises(ResourceError, match=r"keys\[1\].file: .*gone cannot be read \(No such file"):
        read_key(KeySource(file=tmp_path / "gone"), "keys[1]")
    with pytest.raises(ResourceError, match="directory"):
        read_key(KeySource(file=tmp_path), "keys[0]")


def test_the_same_key_twice_is_refused() -> None:
    keys = [{"value": MASTER}, {"value": OTHER_MASTER}, {"value": MASTER.upper()}]
    with pytest.raises(ConfigError, match="twice"):
        open_aesgcm(AesGcmSettings.model_validate({"keys": keys}))


def test_a_key_s_number_does_not_change_and_tells_keys_apart() -> None:
    """It is in headers for years."""
    assert WANTED.key_id == MasterKey.of(RAW).key_id
    assert WANTED.key_id != MasterKey.of(bytes.fromhex(OTHER_MASTER)).key_id
    assert MasterKey.of(bytes(range(32))).key_id.hex() == "c318df6dd240aca7"
