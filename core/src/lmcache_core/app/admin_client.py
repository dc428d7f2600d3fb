"""Asks a running server's admin API, for the commands."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from pydantic import ValidationError

from lmcache_core.admin.schemas import Answer
from lmcache_core.admin.token import read_token
from lmcache_core.model.errors import ConfigError, LMCacheError

_ANSWER_BYTES: Final = 16 << 20
_TIMEOUT_SECONDS: Final = 10.0
_URL: Final = "http://127.0.0.1:8080"


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    """What every command takes that asks the admin API."""
    parser.add_argument("--url", default=_URL, help=f"its admin API (default: {_URL})")
    parser.add_argument("--json", action="store_true", help="print the answer as it is")
    parser.add_argument(
        "--http-token-file",
        default=os.environ.get("LMCACHE_HTTP_TOKEN_FILE"),
        metavar="FILE",
        help="file with the server's Bearer token (default: LMCACHE_HTTP_TOKEN_FILE)",
    )


Shown = TypeVar("Shown", bound=Answer)


class AdminClient:
    """One server.  Whatever is not the answer that was asked for raises LMCacheError with the address, and with what the
    server says is wrong."""

    def __init__(self, url: str, token: str | None) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"--url {url}: expected an address such as {_URL}")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # a proxy of the environment knows nothing of servers on this machine
        self._opener: OpenerDirector = build_opener(ProxyHandler({}))

    @classmethod
    def of(cls, given: argparse.Namespace) -> AdminClient:
        """By the flags of `add_admin_flags`.  Raises ConfigError."""
        return cls(given.url, read_token(given.http_token_file) if given.http_token_file else None)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer as it is, a JSON object.  `path` is percent-encoded."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({} if data is None else {"Content-Type": "application/json"})}
        request = Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                given = json.loads(answer.read(_ANSWER_BYTES))
        except HTTPError as error:
            raise LMCacheError(f"{self._url} answers {error.code} {error.reason}{_why(error)}") from None
        except (URLError, OSError) as error:
            raise LMCacheError(
                f"{self._url} does not answer: {getattr(error, 'reason', error)}; is the server running?"
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

    def _not_ours(self) -> LMCacheError:
        return LMCacheError(f"{self._url} answers, but not as the admin API of a cache server")


def _why(error: HTTPError) -> str:
    """What is wrong and what to do, as far as it is known."""
    with error:
        if error.code == 401:
            return "; give --http-token-file"
        try:
            detail = json.loads(error.read(_ANSWER_BYTES))["detail"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
    return f": {detail}" if isinstance(detail, str) and detail != error.reason else ""
