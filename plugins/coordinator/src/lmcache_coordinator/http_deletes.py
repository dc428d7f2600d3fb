"""Deletes at servers that keep no journals: no reply reaches them, so that they are asked at their admin API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from lmcache_client.errors import LMCacheError
from lmcache_coordinator.posted_events import key_of
from lmcache_coordinator.registry import Instance
from lmcache_coordinator.server_api import ServerApi
from lmcache_core import ObjectKey
from lmcache_fleet.messages import COMMAND_KEYS_MAX

logger = logging.getLogger(__name__)


class HttpDeletes:
    """One request at a time, on a thread of its own: a server may not answer."""

    def __init__(self, token_file: str | None, goes_on: Callable[[], bool]) -> None:
        """The token is read for each request, and `goes_on` asked before it: does this coordinator still evict?"""
        self._token_file = token_file
        self._goes_on = goes_on
        self._thread: threading.Thread | None = None

    def begin(self, instance: Instance, keys: Sequence[ObjectKey], failed: Callable[[], None]) -> bool:
        """Returns at once; False where a request before this one has not ended.  Called by one thread.  What the server deletes
        comes back in what it posts; `failed` is called where it answers with an error, or not at all."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(
            target=self._send, args=(instance, keys, failed), name="http-deletes", daemon=True
        )
        self._thread.start()
        return True

    def _send(self, instance: Instance, keys: Sequence[ObjectKey], failed: Callable[[], None]) -> None:
        try:
            with closing(ServerApi(instance, self._token_file)) as api:
                for at in range(0, len(keys), COMMAND_KEYS_MAX):
                    if not self._goes_on():
                        return
                    api.delete([key_of(key).model_dump() for key in keys[at : at + COMMAND_KEYS_MAX]])
        except LMCacheError as error:
            logger.warning(
                "a server that was asked to delete did not; another one is asked instance=%s error=%s",
                instance.instance_id,
                error,
            )
            failed()
