"""The membership that is in use, and its replacement by a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from lmcache_core import AdapterContext, LMCacheError
from lmcache_l2_mooncake.codes import MooncakeError
from lmcache_l2_mooncake.store_client import StoreClient

CHECK_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 30.0
"""A membership recovers within about ten seconds of its master's return.  One that has not by then never does."""
RETRY_SECONDS_MAX: Final = 30.0


class InThread(Protocol):
    """Runs a function that blocks, and ends when that has ended."""

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]: ...


class Link:
    """Lends the client out, and knows when its last user ends.  Belongs to one event loop.

    A client that was abandoned is closed when its last call has ended, since the library does not survive a call on a closed
    one; the next one is opened behind it, since two would hold their memory twice."""

    def __init__(
        self,
        context: AdapterContext,
        open_client: Callable[[], StoreClient],
        is_reachable: Callable[[], bool],
        in_thread: InThread,
    ) -> None:
        """`open_client` raises LMCacheError.  `is_reachable`: does something listen where the master is to be?"""
        self._context: Final = context
        self._open_client: Final = open_client
        self._is_reachable: Final = is_reachable
        self._in_thread: Final = in_thread
        self._client: StoreClient | None = None
        self._users = 0
        self._given_up: str | None = None
        self._closed = asyncio.Event()
        """That the client in use is closed: no byte is moved by it any more."""
        self._answers = True
        self._lost_since: float | None = None
        self._retry_at = 0.0
        self._retry_seconds = CHECK_SECONDS
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.renewals = 0
        """Clients that were opened in place of another."""

    async def start(self) -> None:
        """Open the first client.  Raises LMCacheError."""
        try:
            await self._in_thread(self._open)
        except asyncio.CancelledError:  # it took too long, and ended all the same
            await self.stop()
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Close the client.  Call it when the client is not used any more."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        client, self._client = self._client, None
        if client is not None:
            await self._in_thread(client.close)
        self._closed.set()

    @property
    def healthy(self) -> bool:
        """May calls be made?"""
        return self._client is not None and self._given_up is None and self._answers

    @contextmanager
    def borrow(self) -> Iterator[StoreClient]:
        """The client, for calls that have ended when the context is left.  Raises MooncakeError where there is none, or it has
        no master."""
        client = self._client
        if client is None or self._given_up is not None:
            raise MooncakeError("this server is not a member of its Mooncake Store right now, and joins again soon")
        if not self._answers:
            raise MooncakeError(
                "Mooncake's master does not answer; check that mooncake_master is running and reachable"
            )
        self._users += 1
        try:
            yield client
        finally:
            self._returned()

    @property
    def closed(self) -> asyncio.Event:
        """Of the client that is in use now."""
        return self._closed

    def answered(self) -> None:
        """A call came back from the master."""
        self._lost_since = None

    def lost(self) -> None:
        """A call came back without an answer of the master."""
        if self._lost_since is None:
            self._lost_since = self._context.clock.monotonic()

    def give_up(self, reason: str) -> None:
        """Use this client no more, and open another."""
        if self._given_up is None and self._client is not None:
            self._given_up = reason
            self._context.logger.warning(
                "mooncake membership is left and joined again adapter=%s reason=%s calls_running=%d",
                self._context.name, reason, self._users,
            )  # fmt: skip
            self._wake.set()

    async def look(self) -> None:
        """Is all well?  Do what has to be done if it is not; called once in a while."""
        if self._client is None:
            await self._join_again()
        elif self._given_up is not None:
            if not self._users:
                await self._leave(self._client)
                await self._join_again()
        else:
            await self._check(self._client)

    def _returned(self) -> None:
        self._users -= 1
        if not self._users and self._given_up is not None:
            self._wake.set()

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.look()
            except Exception:  # a task's top: the next look may go better
                self._context.logger.exception(
                    "looking after a mooncake membership failed adapter=%s", self._context.name
                )

    async def _check(self, client: StoreClient) -> None:
        answers = await self._in_thread(client.health)
        if answers is not None and answers != self._answers:
            self._answers = answers
            (self._context.logger.info if answers else self._context.logger.warning)(
                "mooncake master %s adapter=%s", "answers again" if answers else "does not answer", self._context.name
            )
        if answers:
            self.answered()
        elif answers is False:
            self.lost()
        since = self._lost_since
        if since is None or self._context.clock.monotonic() - since < RENEW_SECONDS:
            return
        if await self._in_thread(self._is_reachable):
            self.give_up("the master is there, and does not know this member")

    async def _leave(self, client: StoreClient) -> None:
        try:
            await self._in_thread(client.close)
        finally:
            self._client = None
            self._closed.set()

    async def _join_again(self) -> None:
        now = self._context.clock.monotonic()
        if now < self._retry_at:
            return
        try:
            if await self._in_thread(self._is_reachable):
                await self._in_thread(self._open)
                self.renewals += 1
                self._retry_seconds = CHECK_SECONDS
                self._context.logger.info("mooncake membership was joined again adapter=%s", self._context.name)
                return
        except LMCacheError as error:
            self._context.logger.warning(
                "mooncake membership could not be joined adapter=%s: %s", self._context.name, error
            )
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    def _open(self) -> None:
        # In a thread, and kept at once: the waiter may be cancelled, and a client without a reference is never closed.
        client = self._open_client()
        self._closed = asyncio.Event()
        self._given_up, self._answers, self._lost_since = None, True, None
        self._client = client
