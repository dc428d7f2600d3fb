"""The scheduler's connection to the server: one channel, and a heartbeat that says whether a server is there."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any, Final

from lmcache_client import (
    CLEAR,
    END_SESSION,
    FREE_LOOKUP_LOCKS,
    HELLO,
    LOOKUP,
    NOOP,
    WAIT_PREFETCH_STATUS,
    ClientHello,
    EngineChannel,
    EngineKey,
    Heartbeat,
    LMCacheError,
    Operation,
    ServerChange,
    ServerHello,
)
from lmcache_client.blend import BLEND_LOOKUP
from lmcache_client.handoff import HANDOFF_ENGINE, HANDOFF_WAIT
from lmcache_vllm.handoff_wait import HandoffWaits
from lmcache_vllm.server_port import AwaitedHandoff, Question, Server
from lmcache_vllm.settings import Settings

logger = logging.getLogger(__name__)

_CLIENT: Final = "lmcache-vllm scheduler"
_FIRST_HELLO_SECONDS: Final = 3600.0
"""The first question waits in the connection until a server is there."""
_LOOKUP_WAIT_SECONDS: Final = 60.0
"""A request that is looked up early may wait in vLLM's queue before vLLM asks for the answer."""
_CLEAR_SECONDS: Final = 5.0
_GOODBYE_SECONDS: Final = 1.0


class ServerLink:
    """A ServerPort. The server may be absent when an engine starts, and come and go later on."""

    def __init__(self, settings: Settings) -> None:
        """Connects in the background. Raises ValueError when the endpoint cannot be parsed."""
        self._server: Server | None = None
        self._losses = 0
        try:
            self._channel = EngineChannel(settings.url, settings.timeout_seconds)
        except LMCacheError as error:
            raise ValueError(f"lmcache.url: {error}") from None
        self._waits = HandoffWaits(self._channel, self._ask, settings.handoff_progress_seconds)
        self._hands_over = False
        self._blends = False
        self._engine = (settings.engine_url, settings.pd_role) if settings.engine_url else None
        self._heartbeat = Heartbeat(self._channel, self._on_change, interval_seconds=settings.heartbeat_seconds)
        first = self._channel.submit(HELLO, ClientHello(_CLIENT), timeout_seconds=_FIRST_HELLO_SECONDS)
        first.add_done_callback(self._on_first_hello)
        self._heartbeat.start()

    @property
    def server(self) -> Server | None:
        return self._server

    @property
    def losses(self) -> int:
        return self._losses

    @property
    def blends(self) -> bool:
        return self._blends and self._server is not None

    def look_up(self, key: EngineKey, handoff: AwaitedHandoff | None = None) -> Question | None:
        self._waits.forget(key.request_id)
        try:
            return self._waits.begin(key, handoff) if handoff and self._hands_over else self._ask(key)
        except LMCacheError as error:
            logger.warning("lookup was not sent request=%s error=%s", key.request_id, error)
            return None

    def _ask(self, key: EngineKey) -> Question:
        seconds = _LOOKUP_WAIT_SECONDS + self._channel.timeout_seconds
        accepted = self._channel.submit(LOOKUP, key, 1)
        chunks = self._channel.submit(
            WAIT_PREFETCH_STATUS, key.request_id, _LOOKUP_WAIT_SECONDS, timeout_seconds=seconds
        )
        return Question(accepted, chunks)

    def look_up_blend(self, key: EngineKey) -> Question | None:
        self._waits.forget(key.request_id)
        seconds = _LOOKUP_WAIT_SECONDS + self._channel.timeout_seconds
        try:
            accepted = self._channel.submit(NOOP)  # the lookup is answered once, when all is known
            answer = self._channel.submit(BLEND_LOOKUP, key, _LOOKUP_WAIT_SECONDS, timeout_seconds=seconds)
        except LMCacheError as error:
            logger.warning("lookup was not sent request=%s error=%s", key.request_id, error)
            return None
        return Question(accepted, answer)

    def free(self, key: EngineKey) -> None:
        self._send(FREE_LOOKUP_LOCKS, key, 1)

    def hand_over(self, step: Operation, handoff_id: str, *facts: Any) -> None:
        if self._hands_over:
            self._send(step, handoff_id, *facts)

    def end(self, request_id: str) -> None:
        self._waits.forget(request_id)
        self._send(END_SESSION, request_id)

    def clear(self) -> bool:
        try:
            self._channel.call(CLEAR, True, timeout_seconds=_CLEAR_SECONDS)
        except LMCacheError as error:
            logger.warning("cache was not cleared error=%s", error)
            return False
        return True

    def close(self) -> None:
        if self._engine is not None and self._server is not None:
            try:
                self._channel.call(HANDOFF_ENGINE, self._engine[0], "", timeout_seconds=_GOODBYE_SECONDS)
            except LMCacheError as error:
                logger.debug("server did not hear that this engine ends error=%s", error)
        # The channel first: it ends what the heartbeat waits for.
        self._server = None
        self._channel.close()
        self._heartbeat.stop()

    def _send(self, operation: Operation, *payload: Any) -> None:
        """Without waiting for the answer: if there is none, the server's deadlines do the same later."""
        try:
            self._channel.submit(operation, *payload)
        except LMCacheError as error:
            logger.debug("request was not sent operation=%s error=%s", operation.name, error)

    def _on_first_hello(self, answer: Future[ServerHello | None]) -> None:
        if answer.exception() is None and self._server is None and self._heartbeat.healthy:
            self._adopt(answer.result())

    def _on_change(self, change: ServerChange) -> None:
        if change is ServerChange.LOST:
            self._server = None
            self._losses += 1
            logger.warning("server is away, requests are computed without it endpoint=%s", self._channel.endpoint)
            return
        hello = self._channel.hello(_CLIENT)
        if hello is None:
            raise LMCacheError(f"{self._channel.endpoint} does not say which server it is")
        self._adopt(hello)

    def _adopt(self, hello: ServerHello | None) -> None:
        if hello is None or hello.chunk_tokens <= 0:
            return
        self._hands_over = HANDOFF_WAIT.name in hello.operations
        self._blends = BLEND_LOOKUP.name in hello.operations
        self._waits.own_server = hello.instance_id
        self._server = Server(hello.boot_id, hello.chunk_tokens, hello.instance_id)
        if self._engine is not None and HANDOFF_ENGINE.name in hello.operations:
            self._send(HANDOFF_ENGINE, *self._engine)
        logger.info(
            "server is there endpoint=%s version=%s chunk_tokens=%d",
            self._channel.endpoint,
            hello.version,
            hello.chunk_tokens,
        )
