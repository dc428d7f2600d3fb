"""One line for each lookup, whatever the lookup says, and simulators that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ConfigError, LookupHashes
from lmcache_devkit import SubscriberSuite
from lmcache_observability.lookup_hash.lookup_hash_subscriber import line_of, open_lookup_hash
from lmcache_observability.lookup_hash.settings import LookupHashSettings
from plugins.observability.tests.server_stand_in import ServerStandIn

HASHES = bytes(range(32)) + bytes(range(100, 132))


class TestLookupHash(SubscriberSuite):
    offer = "lookup_hash"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"dir": str(tmp_path / "lookups"), "rotation_max_size": 100_000, "max_files": 3}


def lookup(**changes: Any) -> LookupHashes:
    given: dict[str, Any] = {
        "at": 1700000000.25,
        "request_id": "r",
        "model_name": "m",
        "cache_salt": "tenant",
        "world_size": 2,
        "prompt_tokens": 700,
        "chunk_hashes": HASHES,
    }
    return LookupHashes(**{**given, **changes})


def test_a_line_says_what_was_asked() -> None:
    assert json.loads(line_of(lookup(), 256, "plain")) == {
        "timestamp": 1700000000.25,
        "request_id": "r",
        "model_name": "m",
        "cache_salt": "tenant",
        "world_size": 2,
        "chunk_size": 256,
        "seq_len": 700,
        "chunk_hashes": [f"0x{HASHES[:32].hex()}", f"0x{HASHES[32:].hex()}"],
    }


@given(st.text(), st.text(), st.text(min_size=1), st.binary(max_size=40))
def test_nothing_can_make_a_line_of_its_own(request_id: str, model: str, salt: str, hashes: bytes) -> None:
    event = lookup(request_id=request_id, model_name=model, cache_salt=salt, chunk_hashes=hashes)
    for style in ("plain", "hashed"):
        line = line_of(event, 256, style)
        assert line.count(b"\n") == 1
        assert line.isascii()
        assert json.loads(line)["request_id"] == request_id


def test_salts_are_digests_unless_they_may_be_plain() -> None:
    assert b"tenant" not in line_of(lookup(), 256, "hashed")


def test_lines_are_written_at_the_end_of_a_batch(tmp_path: Path) -> None:
    subscriber = open_lookup_hash(LookupHashSettings.model_validate({"dir": tmp_path}))
    subscriber.begin(ServerStandIn())
    call = subscriber.subscriptions()[LookupHashes]
    (file,) = tmp_path.iterdir()
    for number in range(3):
        call(lookup(request_id=f"r{number}"))
    assert file.read_bytes() == b""
    subscriber.batch_done()
    assert [json.loads(line)["request_id"] for line in file.read_text().splitlines()] == ["r0", "r1", "r2"]
    call(lookup(request_id="last"))
    subscriber.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (lines[-1]["request_id"], lines[-1]["chunk_size"]) == ("last", 256)


def test_a_folder_that_is_not_available_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--lookup-hash-log-dir .*file.*cannot be written to"):
        open_lookup_hash(LookupHashSettings.model_validate({"dir": tmp_path / "file" / "logs"}))
