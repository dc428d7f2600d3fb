"""The engines behind the proxy: which of them answer, and how much each has to do."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

import httpx

logger = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 2.0
"""Between two looks at an engine, and how long it may take to answer one."""
NAMED_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 3.0
SEND_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 << 20
"""Of an answer that is not streamed."""
_HEADERS: Final = {"accept-encoding": "identity"}


class EngineError(Exception):
    """What an engine did instead of answering."""


class Engine:
    """One engine's HTTP server.  Belongs to the proxy's event loop."""

    def __init__(self, url: str, silence_seconds: float) -> None:
        """An engine that sends nothing for `silence_seconds` while it answers counts as failed."""
        self.url: Final = url
        self.is_up = True
        """As far as is known; a first request is not refused because no look was taken yet."""
        self.requests = 0
        self.failures = 0
        self.in_flight = 0
        self.asked_at = 0.0
        self.named_at = 0.0
        """When the coordinator last named it."""
        timeout = httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS, write=SEND_SECONDS, pool=None)
        # A connection for each request: what an engine sends behind an answer would be taken for the next one, to another
        # client.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.client: Final = httpx.AsyncClient(
            base_url=url, timeout=timeout, limits=limits, headers=_HEADERS, trust_env=False, verify=_certificates()
        )

    @contextmanager
    def asked(self) -> Iterator[httpx.AsyncClient]:
        """A request to it: counts, and knows from a connection that fails that the engine is down."""
        self.requests += 1
        self.in_flight += 1
        self.asked_at = time.monotonic()
        try:
            yield self.client
        except (httpx.HTTPError, EngineError) as error:
            self.failures += 1
            logger.warning("engine failed url=%s error=%s", self.url, described(error))
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                self._found(is_up=False)
            raise
        finally:
            self.in_flight -= 1

    async def look(self) -> None:
        """Ask for its health."""
        try:
            answer = await self.client.get("/health", timeout=HEALTH_SECONDS)
            self._found(is_up=answer.is_success)
        except httpx.HTTPError:
            self._found(is_up=False)

    def about(self) -> Mapping[str, Any]:
        names = ("url", "is_up", "in_flight", "requests", "failures")
        return {name: getattr(self, name) for name in names}

    def _found(self, *, is_up: bool) -> None:
        if is_up is not self.is_up:
            logger.log(logging.INFO if is_up else logging.WARNING, "engine is %s url=%s", _STATE[is_up], self.url)
        self.is_up = is_up


class Engines:
    """Those of one role."""

    def __init__(self, urls: Sequence[str], silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self.all: Sequence[Engine] = [Engine(url, silence_seconds) for url in urls]
        self._gone: list[Engine] = []

    def replace(self, urls: Iterable[str]) -> None:
        """These, and of those that were named before the ones that are up, for `NAMED_SECONDS`: a coordinator that has started
        again knows no engine until the servers have registered.  Requests to the others go on."""
        now = time.monotonic()
        known = {engine.url: engine for engine in self.all}
        named = [known.get(url) or Engine(url, self._silence_seconds) for url in dict.fromkeys(urls)]
        for engine in named:
            engine.named_at = now
        unnamed = [engine for engine in self.all if engine not in named]
        kept = [engine for engine in unnamed if engine.is_up and now - engine.named_at < NAMED_SECONDS]
        self.all = [*named, *kept]
        self._gone += [engine for engine in unnamed if engine not in kept]

    async def look(self) -> None:
        """Ask each for its health; close the connections of those that are gone."""
        await asyncio.gather(*(engine.look() for engine in self.all))
        for engine in [engine for engine in self._gone if not engine.in_flight]:
            self._gone.remove(engine)
            await engine.client.aclose()

    async def close(self) -> None:
        for engine in (*self.all, *self._gone):
            await engine.client.aclose()

    def best(self, prefixes: Mapping[str, int], *without: Engine) -> Engine | None:
        """The one with the longest prefix, by URL, then with the fewest requests in flight, then the one that was not asked
        for longest.  Engines that are down are the last."""
        rest = [engine for engine in self.all if engine not in without]
        if not rest:
            return None
        return min(rest, key=lambda each: (not each.is_up, -prefixes.get(each.url, 0), each.in_flight, each.asked_at))


def is_url(text: object) -> TypeGuard[str]:
    """Is it the address of an HTTP server, without a path?"""
    try:
        parts = urlsplit(text) if isinstance(text, str) and httpx.URL(text) else None
        is_http = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False
    return bool(is_http and parts and not (parts.path.strip("/") or parts.query or parts.fragment or parts.username))


async def whole(answer: httpx.Response) -> bytes:
    """Raises EngineError for one that is too long."""
    parts, length = [], 0
    async for part in answer.aiter_raw():
        length += len(part)
        if length > ANSWER_BYTES_MAX:
            raise EngineError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def described(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: this takes 40 ms, which requests would wait for whenever an engine is added."""
    return httpx.create_ssl_context(trust_env=False)


_STATE: Final = {True: "up", False: "down"}
