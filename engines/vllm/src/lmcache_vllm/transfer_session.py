"""A worker's registration with the server: made, watched, and made again when the server is another one."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from lmcache_client import (
    UNREGISTER_ENGINE_DRIVEN,
    EngineChannel,
    L1Segment,
    LMCacheError,
    NoAnswerError,
    WorkerRegistration,
)
from lmcache_client.messages import SharedMemoryOffer
from lmcache_vllm.placement import Placement
from lmcache_vllm.transfer_pages import ChunkPages
from lmcache_vllm.transfer_registration import Registration

logger = logging.getLogger(__name__)

REGISTER_SECONDS: Final = 5.0
"""How long a server may take to answer each question of a registration."""
UNREGISTER_SECONDS: Final = 1.0
"""How long the answer to that is waited for; what was sent counts anyway."""
STOP_SECONDS: Final = 1.5
"""How long the end waits for the server. vLLM kills a worker that takes more than five seconds."""
FENCE_SHARE: Final = 4
"""This part of the time after which the server takes a silent worker for dead is the fence."""
PINGS_PER_FENCE: Final = 3
"""Pings that are due within a fence, at least: one that is late does not reach it."""
FIRST_RETRY_SECONDS: Final = 0.2
"""After a failed registration; doubled up to the heartbeat."""
CLIENT: Final = "lmcache-vllm worker"


class ServerSession:
    """Keeps one worker registered. Owns its connections, the mappings and a thread.

    The thread pings the server every heartbeat, or more often where the server takes silent workers for dead early. A server
    that does not know the worker, or that was away, gets a new registration under a new instance id. Whatever still waits for
    an answer to the earlier one is ended at once, and it is unregistered and unmapped when it is no longer used.
    """

    def __init__(
        self,
        url: str,
        placement: Placement,
        open_pages: Callable[[int], ChunkPages],
        *,
        timeout_seconds: float,
        heartbeat_seconds: float,
        on_lost: Callable[[], None],
        in_process: bool = False,
    ) -> None:
        """`open_pages` is called with the server's chunk size. `on_lost` is called on the session's thread. `in_process`: the
        server is the engine's own, begins after its workers and is as old as they; its memory loses its name when they have
        mapped it, so that it is mapped once."""
        self._url = url
        self._placement = placement
        self._open_pages = open_pages
        self._timeout = timeout_seconds
        self._heartbeat = heartbeat_seconds
        self._on_lost = on_lost
        self._in_process = in_process
        self._mapped: Registration | None = None  # in_process: the latest, whose mapping all have
        self._control = EngineChannel(url, min(timeout_seconds, REGISTER_SECONDS))
        self._condition = threading.Condition()
        self._current: Registration | None = None
        self._retired: list[Registration] = []
        self._healthy = False
        self._stopping = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="lmcache-session", daemon=True)

    def start(self, wait_seconds: float) -> None:
        """Begin, and wait at most `wait_seconds` for the first registration."""
        self._thread.start()
        with self._condition:
            self._condition.wait_for(lambda: self._healthy or self._stopping, wait_seconds)

    def stop(self) -> None:
        """End what waits for an answer, unregister and unmap. Waits for copies that are under way."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(STOP_SECONDS)
        self._control.close()  # ends what the thread may still wait for
        self._thread.join()

    @property
    def healthy(self) -> bool:
        """Whether transfers can be tried now."""
        return self._healthy

    @property
    def failure_reason(self) -> str:
        """Why there is no registration, as far as that is known."""
        return self._failure

    @contextmanager
    def use(self) -> Iterator[Registration | None]:
        """The registration for one transfer, None while there is none or the server is away. Inside, its memory stays
        mapped and it is not unregistered. Any thread."""
        with self._condition:
            registration = self._current if self._healthy and not self._stopping else None
            if registration is not None:
                registration.users += 1
        try:
            yield registration
        finally:
            if registration is not None:
                with self._condition:
                    registration.users -= 1
                    self._condition.notify_all()

    def suspect(self, registration: Registration) -> None:
        """A request was not answered in time: transfers end at once until the server has shown that it is there."""
        with self._condition:
            if registration is self._current:
                self._healthy = False
                self._condition.notify_all()

    # On the session's thread

    def _run(self) -> None:
        pause = FIRST_RETRY_SECONDS
        while not self._stopping:
            try:
                pause = self._tend(pause)
            except Exception:  # without this thread the engine would never be cached again
                logger.exception("the session with the server failed")
                self._retire()
                pause = self._heartbeat
            with self._condition:
                self._condition.wait_for(self._has_work, pause)
        self._retire()
        with self._condition:
            self._condition.wait_for(lambda: all(registration.users == 0 for registration in self._retired))
        self._sweep()
        if self._mapped is not None:
            _unmap(self._mapped)

    def _tend(self, pause: float) -> float:
        """Look after the registration. Returns the seconds until the next time."""
        if not (self._healthy and self._is_known()):
            self._retire()
            if not self._register():
                self._sweep()
                return pause if self._in_process else min(2 * pause, self._heartbeat)
        self._sweep()
        registration = self._current
        fence = registration.fence_seconds if registration is not None else math.inf
        return min(self._heartbeat, fence / PINGS_PER_FENCE)

    def _has_work(self) -> bool:
        suspected = self._current is not None and not self._healthy
        return self._stopping or suspected or any(registration.users == 0 for registration in self._retired)

    def _is_known(self) -> bool:
        registration = self._current
        if registration is None:
            return False
        asked = time.monotonic()
        try:
            known = self._control.ping(registration.instance_id, timeout_seconds=self._heartbeat)
        except LMCacheError as error:
            logger.warning("the server does not answer, running without it url=%s reason=%s", self._url, error)
            known = False
        else:
            if known:
                registration.heard(asked)
                _map_early(registration.segment)
            else:
                logger.warning("the server does not know this worker any more url=%s", self._url)
        return known

    def _retire(self) -> None:
        """Hand out the current registration no more."""
        with self._condition:
            registration, self._current = self._current, None
            self._healthy = False
            if registration is None:
                return
            self._retired.append(registration)
            lost = not self._stopping
        registration.channel.close()
        if lost:
            self._on_lost()

    def _sweep(self) -> None:
        """End retired registrations that are not in use. What the server still holds for them ends with that."""
        with self._condition:
            unused = [registration for registration in self._retired if registration.users == 0]
            self._retired = [registration for registration in self._retired if registration.users]
        for registration in unused:
            self._unregister(registration.instance_id)
            if not self._in_process:
                _unmap(registration)

    def _unregister(self, instance_id: int) -> None:
        try:
            self._control.submit(UNREGISTER_ENGINE_DRIVEN, instance_id).result(UNREGISTER_SECONDS)
        except (LMCacheError, TimeoutError) as error:
            logger.debug("could not unregister instance=%d reason=%s", instance_id, error)

    def _register(self) -> bool:
        try:
            registration = self._registered()
        except NoAnswerError as error:
            self._failed(str(error))
            return False
        except (LMCacheError, ValueError, OSError) as error:
            self._failed(f"{error}; it stays without a cache")
            return False
        with self._condition:
            self._current, self._healthy, self._failure = registration, True, ""
            self._condition.notify_all()
        return True

    def _registered(self) -> Registration:
        placement = self._placement
        hello = self._control.hello(CLIENT, timeout_seconds=REGISTER_SECONDS)
        if hello is None:
            if self._in_process:
                raise NoAnswerError(f"the engine's process has not opened its cache at {self._url}")
            raise NoAnswerError(f"no server that this connector understands answers at {self._url}")
        pages = self._open_pages(hello.chunk_tokens)
        instance_id = secrets.randbits(62)
        fence = hello.worker_timeout_seconds / FENCE_SHARE
        described = WorkerRegistration(
            instance_id, placement.model_name, placement.world_size, placement.worker_id, pages.parts, fence
        )
        asked = time.monotonic()
        try:
            offer = self._control.register_worker(described)
            if not offer.shm_name:
                raise LMCacheError(
                    f"the server at {self._url} refused this worker; its log says why, and so does GET /status under "
                    "modules, engine_driven, registrations_refused"
                )
            segment = self._segment(offer)
        except BaseException:
            self._unregister(instance_id)
            raise
        _map_early(segment)
        if self._mapped is None:
            pages.copier.attach(segment.address, segment.size_bytes)
        logger.info(
            "registered url=%s instance=%d segment=%s chunk_tokens=%d chunk_bytes=%d",
            self._url,
            instance_id,
            offer.shm_name,
            pages.chunk_tokens,
            pages.payload_bytes,
        )
        channel = EngineChannel(self._url, self._timeout)
        registration = Registration(instance_id, channel, segment, pages, fence, asked)
        if self._in_process:
            self._mapped = registration
        return registration

    def _segment(self, offer: SharedMemoryOffer) -> L1Segment:
        if self._mapped is None:
            return L1Segment(offer.shm_name, offer.pool_size)
        if offer.shm_name.lstrip("/") != self._mapped.segment.name:
            raise LMCacheError(f"the cache at {self._url} is not the one of this engine any more")
        return self._mapped.segment

    def _failed(self, reason: str) -> None:
        """Say why, once for each reason."""
        if reason != self._failure:
            self._failure = reason
            logger.warning("running without the server: %s", reason)


def _unmap(registration: Registration) -> None:
    registration.pages.copier.detach(registration.segment.address)
    registration.segment.close()


def _map_early(segment: L1Segment) -> None:
    """Have what the server has allocated by now mapped in the background: page faults cost more than copies."""
    segment.prefault(0, segment.allocated_bytes)
