"""A prompt or chunk hashes from a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core import CommandParser
from lmcache_tools import chunk_flags
from lmcache_tools.chunk_flags import add_chunk_flags, selection_of


def read(flag: str, path: str, *more: str) -> dict[str, Any]:
    parser = CommandParser("lmcache things", "Things.")
    add_chunk_flags(parser)
    return selection_of(parser.parse_all(["--model", "m", flag, path, *more]))


@pytest.mark.parametrize("text", ["[1, 2, 3]", " 1 2\n3\n", '["1", "2", "3"]'])
def test_numbers_are_read_in_both_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text)
    assert read("--tokens", str(tmp_path / "f"), "--salt", "alice", "--world-size", "2") == {
        "model_name": "m",
        "world_size": 2,
        "cache_salt": "alice",
        "token_ids": [1, 2, 3],
    }


def test_hashes_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("aa\nbb\n"))
    assert read("--hashes", "-")["chunk_hashes"] == ["aa", "bb"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1, 2", "not JSON"),
        (b"[1, null]", "expected token ids, which are numbers"),
        (b"one two", "expected token ids, which are numbers"),
        (b"\xff\xfe", "is not text"),
        (b"1 " * 20, "more than 16 characters"),
    ],
)
def test_what_is_not_a_prompt_is_an_error(
    tmp_path: Path, content: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_flags, "FILE_BYTES_MAX", 16)
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read("--tokens", str(tmp_path / "f"))


def test_one_of_both_is_needed_and_a_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read("--tokens", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="not allowed with argument"):
        read("--tokens", "-", "--hashes", "-")
