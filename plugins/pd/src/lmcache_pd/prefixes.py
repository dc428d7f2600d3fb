"""Which server each prefill engine has, and how long a prefix of a prompt is there, as the coordinator knows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from lmcache_pd.engines import Engines, is_url
from lmcache_pd.legs import Body

logger = logging.getLogger(__name__)

TOKENIZE_SECONDS: Final = 1.0
QUERY_SECONDS: Final = 0.25
PAUSE_SECONDS: Final = 5.0
"""After a failure, requests are spread by load alone for this long: a silent coordinator costs one of them a wait."""
INSTANCES_SECONDS: Final = 10.0
"""How long a list of the servers is used."""
ENGINES: Final = ("engine_urls", "prefill_urls", "decode_urls")
"""In a server's metadata: the engines that use it; those of the last two have said so themselves, with their roles."""
ENGINES_MAX: Final = 64
"""Of each kind, for one server."""
_OF_CHAT: Final = (
    "model", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs",
)  # fmt: skip
_OF_PROMPT: Final = ("model", "prompt", "add_special_tokens")
_Failed = (
    httpx.HTTPError,
    httpx.InvalidURL,
    msgspec.DecodeError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
)
"""What an answer that is not as expected raises, too."""


class Roles(NamedTuple):
    """URLs of engines."""

    prefill: Sequence[str]
    decode: Sequence[str]


class Prefixes:
    """Belongs to the proxy's event loop.  Whatever fails, requests go by load."""

    def __init__(self, coordinator: str | None, token_file: str | None = None) -> None:
        """Without a coordinator nothing is known."""
        self._token_file = token_file
        self._client = httpx.AsyncClient(base_url=coordinator, trust_env=False) if coordinator else None
        self._paused_until = 0.0
        self._servers: Mapping[str, Sequence[str]] = {}
        """Engine URLs by instance; by host where the instance names none."""
        self._roles = Roles((), ())
        self._is_answering = True
        """The coordinator, when it was last asked for the servers: one line in the log for each time that it stops."""
        self._listed_at: float | None = None
        self._answered: dict[str, str] = {}
        """Instance id of an engine's server by the engine's URL, as its last answer names it."""

    async def of(self, body: Body, path: str, engines: Engines) -> Mapping[str, int]:
        """Tokens by URL of an engine; engines of which nothing is known are missing."""
        if self._client is None or len(engines.all) < 2 or time.monotonic() < self._paused_until:
            return {}
        try:
            return await self._found(self._client, body, path, engines)
        except _Failed as error:
            logger.warning("prefill is chosen by load alone: %s %s", type(error).__name__, error)
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            return {}

    async def _found(self, client: httpx.AsyncClient, body: Body, path: str, engines: Engines) -> Mapping[str, int]:
        tokens = await _tokens(body, path, engines)
        if not tokens or not isinstance(body.get("model"), str):
            return {}
        asked = {"model": body["model"], "token_ids": tokens, "cache_salt": body.get("cache_salt") or ""}
        answer = await client.post("/query", json=asked, headers=self._headers(), timeout=QUERY_SECONDS)
        matches = msgspec.json.decode(answer.raise_for_status().content)["default"]
        await self._list(client)
        return {
            engine.url: max(
                (int(match["longest_matched"]) for name, match in matches.items() if self._serves(name, engine.url)),
                default=0,
            )
            for engine in engines.all
        }

    def answered(self, url: str, server: str) -> None:
        """A prefill engine has named its server."""
        if server:
            self._answered[url] = server

    async def server_of(self, url: str) -> str:
        """The instance id of an engine's server; empty where that is not known, or could be several."""
        if url in self._answered:
            return self._answered[url]
        if not await self._is_listed("the server of an engine is not known"):
            return ""
        names = [name for name in self._servers if self._serves(name, url)]
        return names[0] if len(names) == 1 else ""

    async def roles(self) -> Roles | None:
        """Of the engines that their servers have registered; None where the coordinator does not answer now."""
        return self._roles if await self._is_listed("engines are those that were known") else None

    async def _is_listed(self, otherwise: str) -> bool:
        if self._client is None or time.monotonic() < self._paused_until:
            return False
        try:
            await self._list(self._client)
        except _Failed as error:
            if self._is_answering:
                logger.warning("%s: %s %s", otherwise, type(error).__name__, error)
            self._is_answering = False
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            return False
        self._is_answering = True
        return True

    async def _list(self, client: httpx.AsyncClient) -> None:
        """The servers, unless that was a moment ago."""
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at > INSTANCES_SECONDS:
            listed = await client.get("/instances", headers=self._headers(), timeout=QUERY_SECONDS)
            instances = msgspec.json.decode(listed.raise_for_status().content)["instances"]
            # There is one server on a node, so an engine that its server does not name is known by its host.
            self._servers = {each["instance_id"]: _urls(each, ENGINES) or [each["ip"]] for each in instances}
            self._roles = Roles(*([url for each in instances for url in _urls(each, [role])] for role in ENGINES[1:]))
            self._listed_at = now

    def _serves(self, instance: str, url: str) -> bool:
        if url in self._answered:
            return self._answered[url] == instance
        known = self._servers.get(instance, ())
        return url in known or urlsplit(url).hostname in known

    def _headers(self) -> Mapping[str, str]:
        if self._token_file is None:
            return {}
        return {"authorization": f"Bearer {Path(self._token_file).read_text().strip()}"}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _urls(instance: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """The URLs of these names; other values are ignored, because any member may say anything."""
    given = [instance["metadata"].get(name) for name in names]
    return [url for each in given if isinstance(each, list) for url in each[:ENGINES_MAX] if is_url(url)]


async def _tokens(body: Body, path: str, engines: Engines) -> Sequence[int]:
    """The prompt's, as the engine that has least to do reads it; empty where it has none for one prompt."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    engine = engines.best({})
    if engine is None or not engine.is_up:
        return ()
    fields = _OF_CHAT if "messages" in body else _OF_PROMPT
    asked = {name: body[name] for name in fields if name in body}
    answer = await engine.client.post("/tokenize", json=asked, timeout=TOKENIZE_SECONDS)
    found: Sequence[int] = msgspec.json.decode(answer.content)["tokens"] if answer.is_success else ()
    return found
