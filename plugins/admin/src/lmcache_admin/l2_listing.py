"""What an adapter holds, key by key, as far as it can say so in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from lmcache_admin.key_filter import KeyFilter
from lmcache_core import AdapterAccess, Capability, KeyPage, LMCacheError, NoSuchAdapterError, ObjectKey

PAGE_SECONDS: Final = 8.0
"""How long an adapter may take for one page; what it has said by then is the page."""
KEYS_AT_ONCE: Final = 500
"""Keys that an adapter is asked for in one call."""
CALLS_MAX: Final = 4
"""Calls of one adapter that may be under way: each that hangs keeps a thread."""
TURN_SECONDS: Final = 1.0
"""How long to wait for one of them to end."""


class AdapterNotNamedError(LMCacheError):
    """There are several.  The message names them."""


class NotOfferedError(LMCacheError):
    """The adapter lacks a capability.  The message names it."""


class AdapterSilentError(LMCacheError):
    """The adapter did not answer in time, or has not answered those who asked before."""


class AdapterFailedError(LMCacheError):
    """The adapter failed.  The log says why."""


class L2KeyPage(NamedTuple):
    objects: Mapping[ObjectKey, int | None]
    """With their sizes, where the backend says them."""
    cursor: str | None
    """The adapter's own; None: this is the last page."""

    @property
    def keys(self) -> tuple[ObjectKey, ...]:
        return tuple(self.objects)


class L2Listing:
    """Safe from any thread.  Adapters may block as long as they like: each call has a thread of its own."""

    def __init__(self, clients: Callable[[], Sequence[AdapterAccess]], page_seconds: float = PAGE_SECONDS) -> None:
        self._clients = clients
        self._page_seconds = page_seconds
        self._lock = threading.Lock()  # guards the dictionary
        self._turns: WeakKeyDictionary[AdapterAccess, threading.Semaphore] = WeakKeyDictionary()

    def client(self, name: str | None, needed: Capability) -> AdapterAccess:
        """The adapter of this name, or the only one.  Raises NoSuchAdapterError, AdapterNotNamedError and NotOfferedError."""
        clients = self._clients()
        names = ", ".join(client.name for client in clients)
        if not clients:
            raise NoSuchAdapterError("this server has no L2 adapter; start it with --l2-adapter")
        if name is None and len(clients) > 1:
            raise AdapterNotNamedError(f"there are several adapters: name one with 'adapter'; there are: {names}")
        client = next((client for client in clients if name in (None, client.name)), None)
        if client is None:
            raise NoSuchAdapterError(f"no adapter is called '{name}'; there are: {names}")
        for one in needed & ~client.capabilities:
            raise NotOfferedError(f"adapter '{client.name}' does not offer {one.name}, which this needs")
        return client

    def page(self, client: AdapterAccess, cursor: str | None, limit: int, only: KeyFilter) -> L2KeyPage:
        """About `limit` keys from the adapter's cursor on (None: from the start).  Fewer, and even none, do not mean that
        it is the last page.  Raises AdapterSilentError and AdapterFailedError."""
        until = time.monotonic() + self._page_seconds
        found: dict[ObjectKey, int | None] = {}
        begun_at = cursor
        while True:
            try:
                given = self._call(client, cursor, min(limit - len(found), KEYS_AT_ONCE), until - time.monotonic())
            except AdapterSilentError:
                if cursor == begun_at:
                    raise
                return L2KeyPage(found, cursor)
            sizes = given.sizes if given.sizes and len(given.sizes) == len(given.keys) else repeat(None)
            listed = zip(given.keys, sizes, strict=False)
            found |= {key: size for key, size in listed if isinstance(key, ObjectKey) and only.passes(key)}
            if given.cursor is not None and given.cursor == cursor:
                raise AdapterFailedError(f"adapter '{client.name}' lists in circles")
            cursor = given.cursor
            if cursor is None or len(found) >= limit or time.monotonic() >= until:
                return L2KeyPage(found, cursor)

    def _call(self, client: AdapterAccess, cursor: str | None, limit: int, seconds: float) -> KeyPage:
        with self._lock:
            turns = self._turns.setdefault(client, threading.Semaphore(CALLS_MAX))
        started = time.monotonic()
        if not turns.acquire(timeout=max(0.0, min(TURN_SECONDS, seconds))):
            raise AdapterSilentError(
                f"adapter '{client.name}' has not answered {CALLS_MAX} earlier calls; try again later"
            )
        seconds -= time.monotonic() - started
        answers: SimpleQueue[KeyPage | None] = SimpleQueue()

        def ask() -> None:
            answer = None
            try:
                answer = client.list_keys(cursor, limit)
            finally:
                turns.release()
                answers.put(answer)

        try:
            threading.Thread(target=ask, name=f"l2-keys-{client.name}", daemon=True).start()
        except RuntimeError as error:  # the system has no more
            turns.release()
            raise AdapterFailedError(f"no thread to ask adapter '{client.name}' with: {error}") from None
        try:
            page = answers.get(timeout=max(0.0, seconds))
        except Empty:
            raise AdapterSilentError(
                f"adapter '{client.name}' did not list its keys within {self._page_seconds:.0f} s"
            ) from None
        if page is None and client.is_shut:
            raise NoSuchAdapterError(f"adapter '{client.name}' was removed meanwhile")
        if page is None:
            raise AdapterFailedError(f"adapter '{client.name}' failed to list its keys; the server's log says why")
        return page
