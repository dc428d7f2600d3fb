"""Asks an inference engine's OpenAI-compatible HTTP server: whether it is there, and what it serves."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_output import printable
from lmcache_tools.admin_client import NoRedirects, is_http_url

KEY_VARIABLE: Final = "OPENAI_API_KEY"
_ANSWER_BYTES: Final = 16 << 20


class EngineHttp:
    """One engine.  Every call raises LMCacheError with the address when it does not answer as it should.  An engine that
    wants a key gets the one of OPENAI_API_KEY."""

    def __init__(self, url: str, timeout_seconds: float = 10.0) -> None:
        if not is_http_url(url):
            raise ConfigError("--url: expected the address of an engine, such as http://localhost:8000")
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._opener = build_opener(ProxyHandler({}), NoRedirects)

    def health(self) -> str:
        """Nothing, since an engine says no more than that it is there."""
        self._get("/health")
        return ""

    def models(self) -> list[dict[str, Any]]:
        """What it serves: `id`, and what else the engine says of each."""
        return [each for each in self._json("/v1/models").get("data", []) if isinstance(each, dict)]

    def version(self) -> str:
        """Empty when it does not say."""
        try:
            return str(self._json("/version").get("version", ""))
        except LMCacheError:
            return ""

    def _json(self, path: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._get(path))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise LMCacheError(f"{self.url}{path} answers, but not as an inference engine")
        return answer

    def _get(self, path: str) -> bytes:
        try:
            with self._opener.open(
                Request(self.url + path, headers=self._headers), timeout=self._timeout_seconds
            ) as it:
                return bytes(it.read(_ANSWER_BYTES))
        except HTTPError as error:
            with error:
                hint = f"; set {KEY_VARIABLE}" if error.code == 401 else ""
                raise LMCacheError(f"{self.url}{path} answers {error.code} {printable(error.reason)}{hint}") from None
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise LMCacheError(
                f"{self.url} does not answer: {reason}; is the engine running? Name another one with --url"
            ) from None
