"""Asks a running server's admin API, for the commands."""

from __future__ import annotations

import argparse
import http.client
import json
import os
from collections.abc import Container
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pydantic import BaseModel, ValidationError

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_output import add_output_flags, printable
from lmcache_tools.waiting import waiting

URL_VARIABLE: Final = "LMCACHE_URL"
TOKEN_VARIABLE: Final = "LMCACHE_HTTP_TOKEN"
_ANSWER_BYTES: Final = 64 << 20
_TIMEOUT_SECONDS: Final = 10.0
_URL: Final = "http://127.0.0.1:8080"


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    """What every command takes that asks the admin API: the flags of `add_server_flags` and of `add_output_flags`."""
    add_server_flags(parser)
    add_output_flags(parser)


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Where the admin API is, and the token."""
    section = parser.add_argument_group("server")
    section.add_argument(
        "--url",
        default=default_url(),
        help=f"its admin API (default: {URL_VARIABLE}, else {_URL})",
    )
    section.add_argument(
        "--http-token-file",
        "--token-file",
        default=os.environ.get("LMCACHE_HTTP_TOKEN_FILE"),
        metavar="FILE",
        help="file with the server's Bearer token (default: LMCACHE_HTTP_TOKEN_FILE)",
    )


def default_url() -> str:
    return os.environ.get(URL_VARIABLE) or _URL


def is_http_url(text: str) -> bool:
    """Is it one that can be asked: with a host, with a port that is a number, without a password?"""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:  # brackets that do not close, or a port that is none
        return False


class NoRedirects(HTTPRedirectHandler):
    """For `build_opener`: a redirect raises HTTPError, since only the given address gets the token."""

    def redirect_request(self, *given: Any) -> None:
        return None


Shown = TypeVar("Shown", bound=BaseModel)


class AdminClient:
    """One server.  Whatever is not the answer that was asked for raises LMCacheError with the address, and with what the
    server says is wrong.  The token is sent to that address alone, and never shown."""

    def __init__(self, url: str, token: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigError("--url: leave out what is before the @; a token goes into --http-token-file")
        if not is_http_url(url):
            raise ConfigError(f"--url {url}: expected an address such as {_URL}")
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # a proxy of the environment knows nothing of servers on this machine
        self._opener: OpenerDirector = build_opener(ProxyHandler({}), NoRedirects)

    @classmethod
    def of(cls, given: argparse.Namespace, timeout_seconds: float = _TIMEOUT_SECONDS) -> AdminClient:
        """By the flags of `add_admin_flags`, and by LMCACHE_HTTP_TOKEN where no file is given.  Raises ConfigError."""
        file = given.http_token_file
        token = read_token(file) if file else os.environ.get(TOKEN_VARIABLE, "").strip()
        if token and (not token.isascii() or len(token.split()) != 1):
            raise ConfigError(f"{TOKEN_VARIABLE}: expected one token: plain ASCII, without white space in it")
        return cls(given.url, token, timeout_seconds)

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, also: Container[int] = ()
    ) -> dict[str, Any]:
        """The answer as it is, a JSON object.  `path` is percent-encoded.  An answer with one of the HTTP codes of `also`
        is one, too, and no failure."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({} if data is None else {"Content-Type": "application/json"})}
        request = Request(self.url + path, data, headers, method=method)
        try:
            with waiting(f"asking {self.url}"):
                given = self._answer(request, also)
        except HTTPError as error:
            raise LMCacheError(f"{self.url} answers {error.code} {printable(error.reason + _why(error))}") from None
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise LMCacheError(
                f"{self.url} does not answer: {reason}; is the server running? Name another one with --url"
            ) from None
        except ValueError:
            raise self._not_ours() from None
        if not isinstance(given, dict):
            raise self._not_ours()
        return given

    def read(self, answer: dict[str, Any], model: type[Shown]) -> Shown:
        """An answer of `ask` as what it should be."""
        try:
            return model.model_validate(answer)
        except ValidationError:
            raise self._not_ours() from None

    def _answer(self, request: Request, also: Container[int]) -> Any:
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                return json.loads(answer.read(_ANSWER_BYTES))
        except HTTPError as error:
            if error.code not in also:
                raise
            with error:
                return json.loads(error.read(_ANSWER_BYTES))

    def _not_ours(self) -> LMCacheError:
        return LMCacheError(f"{self.url} answers, but not as the admin API of a cache server")


def _why(error: HTTPError) -> str:
    """What is wrong and what to do, as far as it is known."""
    with error:
        if error.code == 401:
            return "; give --http-token-file with a token that it takes"
        try:
            detail = json.loads(error.read(_ANSWER_BYTES))["detail"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
    return f": {detail}" if isinstance(detail, str) and detail != error.reason else ""


def read_token(path: str, flag: str = "--http-token-file") -> str:
    """The token to send, of a file as the server reads it: the first that is not for reading alone, or else the first.  Raises
    ConfigError; the message never shows a token."""
    try:
        lines = [line.split() for line in Path(path).read_text(encoding="ascii").splitlines()]
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag} {path}: a token is plain ASCII") from None
    tokens = [words for words in lines if words and not words[0].startswith("#")]
    if not tokens:
        raise ConfigError(f"{flag} {path}: there is no token in it")
    return next((words[0] for words in tokens if "read" not in words[1:]), tokens[0][0])
