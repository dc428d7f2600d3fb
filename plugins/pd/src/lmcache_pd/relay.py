"""One request on its way: prefill, decode, and the answer to the client."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx
import msgspec
from litestar.types import Receive, Send

from lmcache_http.gate import problem_body
from lmcache_pd.engines import HEALTH_SECONDS, Engine, EngineError, Engines, described, whole
from lmcache_pd.legs import (
    HANDOFF_ID,
    HANDOFF_SERVER,
    OURS,
    Body,
    concurrent_handoff,
    decode_body,
    handoff_of,
    has_one_prompt,
    prefill_body,
)
from lmcache_pd.prefixes import Prefixes

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 2
STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Proxy:
    """What all requests share."""

    prefill: Engines
    decode: Engines
    prefixes: Prefixes
    is_concurrent: bool
    prefill_seconds: float
    """How long both attempts to prefill may take; decode computes then."""

    async def watch(self, *, learns: bool) -> None:
        """Look at the engines until this is cancelled: it closes the connections then. `learns`: the engines are those that
        the coordinator knows."""
        try:
            while True:
                if learns and (roles := await self.prefixes.roles()) is not None:
                    self.prefill.replace(roles.prefill)
                    self.decode.replace(roles.decode)
                await asyncio.gather(self.prefill.look(), self.decode.look())
                await asyncio.sleep(HEALTH_SECONDS)
        finally:
            for each in (self.prefill, self.decode, self.prefixes):
                await each.close()


class Relay:
    """An ASGI application that answers one request.  When the client leaves, the engines' requests are cancelled: an engine
    stops computing for a connection that is closed."""

    def __init__(self, proxy: Proxy, path: str, body: Body, authorization: str | None) -> None:
        self._proxy, self._path, self._body = proxy, path, body
        self._id = uuid.uuid4().hex
        self._headers = {"content-type": "application/json", "x-request-id": self._id}
        if authorization is not None:
            self._headers["authorization"] = authorization
        self._has_begun = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        answering, leaving = asyncio.ensure_future(self._answer(send)), asyncio.ensure_future(_left(receive))
        both = (answering, leaving)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if not answering.cancelled():
            answering.result()

    async def _answer(self, send: Send) -> None:
        if not any(engine.is_up for engine in self._proxy.prefill.all) or not has_one_prompt(self._body):
            await self._decode(send, None)
        elif self._proxy.is_concurrent:
            prefixes = await self._prefixes()
            first = self._proxy.prefill.best(prefixes)
            server = await self._proxy.prefixes.server_of(first.url) if first else ""
            prefilling = asyncio.ensure_future(self._prefill(prefixes, first))
            try:
                await self._decode(send, concurrent_handoff(self._id, server))
            finally:
                prefilling.cancel()
                await asyncio.gather(prefilling, return_exceptions=True)
        else:
            prefixes = await self._prefixes()
            await self._decode(send, await self._prefill(prefixes, self._proxy.prefill.best(prefixes)))

    async def _prefixes(self) -> Mapping[str, int]:
        return await self._proxy.prefixes.of(self._body, self._path, self._proxy.prefill)

    async def _prefill(self, prefixes: Mapping[str, int], engine: Engine | None) -> Mapping[str, Any] | None:
        """What decode is to be asked with; None: it computes. `engine` is asked first."""
        content = msgspec.json.encode(prefill_body(self._body, self._id))
        try:
            async with asyncio.timeout(self._proxy.prefill_seconds):
                tried: list[Engine] = []
                while len(tried) < ATTEMPTS and engine is not None and engine.is_up:
                    tried.append(engine)
                    try:
                        return await self._prefill_at(engine, content)
                    except (httpx.HTTPError, EngineError):
                        engine = self._proxy.prefill.best(prefixes, *tried)  # it was counted and logged
        except TimeoutError:
            logger.warning("prefill took too long, decode computes request=%s", self._id)
        return None

    async def _prefill_at(self, engine: Engine, content: bytes) -> Mapping[str, Any] | None:
        with engine.asked() as client:
            async with client.stream("POST", self._path, content=content, headers=self._headers) as answer:
                data = await whole(answer)
            if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise EngineError(f"it answered {answer.status_code}")
            if not answer.is_success:
                return None  # decode says the same, to the client
            try:
                handoff = handoff_of(msgspec.json.decode(data))
            except (msgspec.DecodeError, RecursionError):
                raise EngineError("its answer is not JSON") from None
            if handoff is None:
                return None
            if isinstance(server := handoff.get(HANDOFF_SERVER), str):
                self._proxy.prefixes.answered(engine.url, server)
            return {HANDOFF_ID: self._id, **handoff}

    async def _decode(self, send: Send, handoff: Mapping[str, Any] | None) -> None:
        tried: list[Engine] = []
        said = "there is no decode engine"
        while len(tried) < ATTEMPTS and (engine := self._proxy.decode.best({}, *tried)):
            tried.append(engine)
            try:
                await self._decode_at(engine, send, handoff)
            except (httpx.HTTPError, EngineError) as error:
                if self._has_begun:
                    logger.warning("an answer was cut off request=%s url=%s", self._id, engine.url)
                    return  # the server closes the connection of an answer without an end
                said = described(error)
                if handoff is not None and not handoff.get(OURS):
                    handoff = None  # its blocks may be free by now, and have others
                continue
            return
        detail = f"no decode engine answered: {said}"
        body = problem_body(HTTPStatus.BAD_GATEWAY, detail)
        await _send_whole(send, HTTPStatus.BAD_GATEWAY, b"application/problem+json", body)

    async def _decode_at(self, engine: Engine, send: Send, handoff: Mapping[str, Any] | None) -> None:
        """Raises HTTPError or EngineError where the engine failed."""
        content = msgspec.json.encode(decode_body(self._body, handoff))
        with engine.asked() as client:
            async with client.stream("POST", self._path, content=content, headers=self._headers) as answer:
                if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise EngineError(f"it answered {answer.status_code}")
                media_type = answer.headers.get("content-type", "application/json")
                if media_type.partition(";")[0].strip().lower() != STREAM:
                    data = await whole(answer)
                    self._has_begun = True
                    await _send_whole(send, answer.status_code, media_type.encode("latin-1"), data)
                    return
                async for part in answer.aiter_raw():
                    if not self._has_begun:
                        self._has_begun = True
                        await _send_head(send, answer.status_code, media_type.encode("latin-1"))
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if not self._has_begun:
                    raise EngineError("its answer is empty")
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_head(send: Send, status: int, media_type: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", media_type)]})


async def _send_whole(send: Send, status: int, media_type: bytes, body: bytes) -> None:
    await _send_head(send, status, media_type)
    await send({"type": "http.response.body", "body": body, "more_body": False})
