"""Bearer tokens, and what each may do."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_client.errors import ConfigError

logger = logging.getLogger(__name__)

TOKEN_VARIABLE: Final = "LMCACHE_HTTP_TOKEN"
"""The variable of a token.  It is not a setting, so that no list of settings has it."""
LOOK_SECONDS: Final = 1.0
"""Time until a token file that has changed is read again."""


class Scope(StrEnum):
    READ = "read"
    """GET, and what changes nothing."""
    MEMBER = "member"
    """What servers ask of their coordinator."""
    FULL = "full"


SERVER_SCOPES: Final = (Scope.READ, Scope.FULL)


class Token(NamedTuple):
    text: str
    scope: Scope


class Tokens:
    """Those of a file, which is read again when it changes, and the one of the environment.

    For the thread of the HTTP server alone, once it is made."""

    def __init__(
        self,
        path: str | None,
        spoken: str | None = None,
        *,
        scopes: Sequence[Scope] = SERVER_SCOPES,
        flag: str = "--http-token-file",
    ) -> None:
        """`scopes`: those that a file may name.  `flag` is what messages call it.  Raises ConfigError."""
        self._path = path
        self._scopes, self._flag = scopes, flag
        self._spoken = [Token(_checked(spoken, TOKEN_VARIABLE), Scope.FULL)] if spoken else []
        self._digests: list[tuple[bytes, Scope]] = []
        self._seen: tuple[int, ...] | None = None
        self._looked = time.monotonic()
        self._take(read_tokens(path, scopes, flag) if path else [])
        if path:
            self._seen = _stamp(path)
            _warn_of_readers(path)

    def scope_of(self, authorization: str | None) -> Scope | None:
        """What an `Authorization` header allows; None where it carries none of the tokens.  Takes equally long for every
        wrong one."""
        if self._path and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look(self._path)
        scheme, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip())
        found = None
        for known, scope in self._digests:
            if hmac.compare_digest(digest, known):
                found = scope
        return found if scheme.lower() == "bearer" else None

    def _look(self, path: str) -> None:
        """Read the file again if it has changed.  One that cannot be read leaves the tokens as they are."""
        self._looked = time.monotonic()
        if (stamp := _stamp(path)) == self._seen:
            return
        self._seen = stamp
        try:
            self._take(read_tokens(path, self._scopes, self._flag))
        except ConfigError as error:
            logger.warning("tokens stay as they were: %s", error)
        else:
            logger.info("tokens read again file=%s", path)
            _warn_of_readers(path)

    def _take(self, tokens: Sequence[Token]) -> None:
        self._digests = [(_digest(token.text), token.scope) for token in (*tokens, *self._spoken)]


def open_tokens(path: str | None, environment: Mapping[str, str]) -> Tokens | None:
    """None where no token is needed.  Raises ConfigError."""
    spoken = environment.get(TOKEN_VARIABLE)
    return Tokens(path, spoken) if path or spoken else None


def read_tokens(path: str, scopes: Sequence[Scope] = SERVER_SCOPES, flag: str = "--http-token-file") -> list[Token]:
    """One for each line of a file; a word behind it is its scope, and a line that begins with # is a comment.

    Raises ConfigError; the message never shows a token."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag} {path}: a token is plain ASCII") from None
    tokens = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or words[1:] not in ([], *([scope] for scope in scopes)):
            raise ConfigError(
                f"{flag} {path}, line {number}: expected a token without white space in it, and behind it "
                f"nothing or its scope: {' or '.join(scopes)}"
            )
        tokens.append(Token(words[0], Scope(words[1]) if words[1:] else Scope.FULL))
    if not tokens:
        raise ConfigError(f"{flag} {path}: there is no token in it")
    return tokens


def _checked(token: str, where: str) -> str:
    word = token.strip()
    if not word.isascii() or len(word.split()) != 1:
        raise ConfigError(f"{where}: expected one token: plain ASCII, without white space in it")
    return word


def _digest(token: str) -> bytes:
    """Of equal length for all, so that a comparison does not even tell that."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _warn_of_readers(path: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:  # it was taken away in this moment, which the next look will find
        return
    if mode & 0o077:
        logger.warning("other users can read the tokens in %s (mode %o); chmod 600 it", path, mode)
