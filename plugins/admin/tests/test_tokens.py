"""Tokens: what a file may hold, what each allows, and that a changed file counts."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core import Severity
from lmcache_http import tokens as token_module
from lmcache_http.tokens import Scope, Token, Tokens, open_tokens, read_tokens
from lmcache_tools.admin_client import read_token
from plugins.admin.tests.conversation import ask, changes_of, running
from plugins.admin.tests.stand_ins import active


def file_with(tmp_path: Path, text: str) -> str:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Bearer word", True),
        ("bearer word", True),
        (None, False),
        ("", False),
        ("Bearer", False),
        ("Basic word", False),
        ("Bearer wordy", False),
        ("Bearer wor", False),
        ("Bearer \u20ac", False),
        ("word", False),
    ],
)
def test_only_the_token_as_a_bearer_token_counts(header: str | None, right: bool) -> None:
    assert Tokens(None, "word").scope_of(header) is (Scope.FULL if right else None)


def test_a_file_holds_a_token_in_each_line_with_its_scope(tmp_path: Path) -> None:
    path = file_with(tmp_path, "# for operators\n\n first \nsecond read\nthird full\n")
    assert read_tokens(path) == [Token("first", Scope.FULL), Token("second", Scope.READ), Token("third", Scope.FULL)]
    tokens = Tokens(path, "spoken")
    assert [tokens.scope_of(f"Bearer {word}") for word in ("first", "second", "third", "spoken", "#")] == [
        Scope.FULL,
        Scope.READ,
        Scope.FULL,
        Scope.FULL,
        None,
    ]


@pytest.mark.parametrize("content", ["", "  \n", "# nothing\n", "two words", "a read full", "\u20ac"])
def test_what_no_token_file_is(tmp_path: Path, content: str) -> None:
    path = file_with(tmp_path, content)
    with pytest.raises(ConfigError, match=r"--http-token-file .*token") as failed:
        read_tokens(path)
    assert "words" not in str(failed.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_token(str(tmp_path / "absent"))


def test_a_file_that_is_taken_away_while_it_is_read_leaves_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_with(tmp_path, "first")
    monkeypatch.setattr(token_module, "LOOK_SECONDS", 0.0)
    tokens = Tokens(path)
    (tmp_path / "token").write_text("second")

    def read_and_take_away(path: str, scopes: Sequence[Scope], flag: str) -> list[Token]:
        found = read_tokens(path, scopes, flag)
        os.unlink(path)
        return found

    monkeypatch.setattr(token_module, "read_tokens", read_and_take_away)
    assert tokens.scope_of("Bearer second") is Scope.FULL
    assert tokens.scope_of("Bearer second") is Scope.FULL


def test_a_client_sends_the_first_that_may_do_everything(tmp_path: Path) -> None:
    assert read_token(file_with(tmp_path, "weak read\nstrong\n")) == "strong"
    assert read_token(file_with(tmp_path, "weak read\n")) == "weak"


def test_the_environment_may_have_one() -> None:
    assert open_tokens(None, {}) is None
    tokens = open_tokens(None, {"LMCACHE_HTTP_TOKEN": "spoken\n"})
    assert tokens is not None
    assert tokens.scope_of("Bearer spoken") is Scope.FULL
    with pytest.raises(ConfigError, match="LMCACHE_HTTP_TOKEN: expected one token") as failed:
        open_tokens(None, {"LMCACHE_HTTP_TOKEN": "two words"})
    assert "words" not in str(failed.value)


def test_a_changed_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_module, "LOOK_SECONDS", 0.0)
    path = file_with(tmp_path, "old")
    tokens = Tokens(path)
    assert tokens.scope_of("Bearer old") is Scope.FULL
    file_with(tmp_path, "newer")
    assert tokens.scope_of("Bearer old") is None
    assert tokens.scope_of("Bearer newer") is Scope.FULL
    file_with(tmp_path, "")
    assert tokens.scope_of("Bearer newer") is Scope.FULL, "a file without a token leaves those that were there"
    os.unlink(path)
    assert tokens.scope_of("Bearer newer") is Scope.FULL
    assert "tokens stay as they were" in caplog.text
    assert "newer" not in caplog.text


def test_a_file_that_others_can_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = file_with(tmp_path, "word")
    Tokens(path)
    assert caplog.text == ""
    os.chmod(path, 0o644)
    Tokens(path)
    assert f"other users can read the tokens in {path} (mode 644); chmod 600 it" in caplog.text


def test_a_token_to_read_can_only_get(tmp_path: Path) -> None:
    tokens = Tokens(file_with(tmp_path, "strong\nweak read\n"))
    weak: dict[str, Any] = {"Authorization": "Bearer weak"}
    with running(tokens=tokens) as server:
        assert ask(server, "/status", **weak).code == 200
        changes = changes_of(server, **weak)
        assert len(changes) >= 5
        for method, path in changes:
            assert ask(server, path, method, {}, **weak).code == 403, (method, path)
        for method, path, body in (
            ("PUT", "/quota/a", {"limit_gb": 1}),
            ("DELETE", "/quota/a", None),
            ("POST", "/cache/clear", None),
            ("PUT", "/loglevel", {"logger": "lmcache_core", "level": None}),
        ):
            refused = ask(server, path, method, body, **weak)
            assert (refused.code, refused.kind) == (403, "application/problem+json")
            assert refused.body["detail"] == "this token has the scope 'read', which is not for this request"
            assert ask(server, path, method, body, Authorization="Bearer strong").code == 200


def test_without_a_token_a_probe_gets_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running("right-word", conditions=lambda: active(Severity.CRITICAL, "it is down", "thread store")) as server:
        assert ask(server, "/healthcheck")[:3] == (
            503,
            "application/json",
            {"status": "unhealthy", "reason": None},
        )
        answer = ask(server, "/healthcheck", Authorization="Bearer right-word")
        assert answer.body == {"status": "unhealthy", "reason": "thread store: it is down"}
    assert "right-word" not in caplog.text
