"""The Bearer token of the admin API."""

from __future__ import annotations

import hmac
from pathlib import Path

from lmcache_core.model.errors import ConfigError


def read_token(path: str) -> str:
    """The token in a file, without the white space around it.  Raises ConfigError; the message never shows the token."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"--http-token-file {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--http-token-file {path}: a token is plain ASCII") from None
    if not token or len(token.split()) != 1:
        raise ConfigError(f"--http-token-file {path}: expected one token, without white space in it")
    return token


def carries(authorization: str | None, token: str) -> bool:
    """Does an `Authorization` header carry this token?  Takes equally long for every wrong one."""
    scheme, _, given = (authorization or "").partition(" ")
    return hmac.compare_digest(given.strip().encode(), token.encode()) and scheme.lower() == "bearer"
