"""Notices that a server is gone, has come back, or is another one than before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from lmcache_client import operations as ops
from lmcache_client.channel import EngineChannel
from lmcache_client.errors import LMCacheError
from lmcache_client.messages import ClientHello, ServerHello
from lmcache_client.verbs import HELLO_SECONDS, says_no_hello

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
"""A server forgets a worker whose pings have stopped after `--worker-reap-timeout-seconds`, many times as long."""


class ServerChange(Enum):
    LOST = "lost"
    """It does not answer."""
    BACK = "back"
    """It answers again, and it is the one that it was, as far as can be seen."""
    RESTARTED = "restarted"
    """It was started again, or does not know the worker any more: what was registered or held there is gone."""


class Heartbeat:
    """A thread that pings a server over a channel, at once and then every `interval_seconds`, and waits as long for the
    answer.  A scheduler's ping (no instance id) keeps its queued lookups held, so it must go over the channel of the lookups.

    `on_change` is called on the heartbeat's thread, one change after the other, and may use the channel; no ping goes out
    meanwhile.  Where it raises after BACK or RESTARTED, the server counts as unhealthy and the next answered ping calls it
    again, so registering again belongs there.  Threads do not survive a fork: start it in the child.
    """

    def __init__(
        self,
        channel: EngineChannel,
        on_change: Callable[[ServerChange], None],
        *,
        instance_id: int | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        hello: ServerHello | None = None,
    ) -> None:
        """`hello` is what the server said when the caller registered: a restart since then is noticed by the first beat.
        Without it, the first answer is what later ones are held against.  The channel stays the caller's."""
        self._channel = channel
        self._on_change = on_change
        self._instance_id = instance_id
        self._interval_seconds = interval_seconds
        self._boot_id = hello.boot_id if hello else None
        self._asks_hello = True
        self._healthy = True
        self._owed: ServerChange | None = None
        self._stopped: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="lmcache-heartbeat", daemon=True)

    @property
    def healthy(self) -> bool:
        """True until a beat says otherwise.  Any thread."""
        return self._healthy

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No callback begins after this; waits for one that has begun, unless it is the one that calls.  May be called again,
        and without `start`."""
        with suppress(InvalidStateError):  # stopped before, perhaps at this moment by another thread
            self._stopped.set_result(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.done():
            alive, hello = self._ask()
            if self._stopped.done():
                return
            if alive is None:
                self._lose()
            else:
                self._settle(alive, hello)
            wait([self._stopped], self._interval_seconds)

    def _ask(self) -> tuple[bool | None, ServerHello | None]:
        """What the server says to a ping, None for nothing, and to a hello."""
        try:
            ping = self._channel.submit(ops.PING, self._instance_id, timeout_seconds=self._interval_seconds)
            hello = self._submit_hello() if self._asks_hello else None
        except LMCacheError:
            return None, None
        alive = self._answer(ping, self._interval_seconds + HELLO_SECONDS)
        if hello is None or alive is None:
            return alive, None
        # Answered in order on the router's thread: where it is answered at all, it is here.
        said = self._answer(hello, HELLO_SECONDS)
        if said is None and self._boot_id is None and not self._stopped.done():
            # Never answered.  One that did, and is late or was started again in between, may answer the next.
            self._asks_hello = False
            says_no_hello(self._channel.endpoint)
        return alive, said

    def _submit_hello(self) -> Future[ServerHello | None]:
        return self._channel.submit(ops.HELLO, ClientHello("heartbeat"), timeout_seconds=self._interval_seconds)

    def _answer(self, future: Future[Any], seconds: float) -> Any:
        """None as well when the heartbeat is stopped, or the answer is an error."""
        wait([future, self._stopped], seconds, FIRST_COMPLETED)
        return None if not future.done() or future.exception() is not None else future.result()

    def _lose(self) -> None:
        self._asks_hello = True  # the next server may know it
        if self._healthy:
            self._healthy = False
            self._tell(ServerChange.LOST)

    def _settle(self, alive: bool, hello: ServerHello | None) -> None:
        another = hello is not None and self._boot_id not in (None, hello.boot_id)
        if hello is not None:
            self._boot_id = hello.boot_id
        if another or not alive:
            self._owed = ServerChange.RESTARTED
        elif self._owed is None and not self._healthy:
            self._owed = ServerChange.BACK
        if self._owed is None:
            return
        self._healthy = False
        if self._tell(self._owed):
            self._owed = None
            self._healthy = True

    def _tell(self, change: ServerChange) -> bool:
        logger.info("client sees a change of its server endpoint=%s change=%s", self._channel.endpoint, change.value)
        try:
            self._on_change(change)
        except Exception:  # the caller's code
            logger.exception("client could not react to a change of its server change=%s", change.value)
            return False
        return True
