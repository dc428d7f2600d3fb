"""Parts of plugins that are opened beside a running server, within a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, Final, TypeVar

from lmcache_core import NotNowError, Opening, OpeningAbandonedError

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

OPENINGS_MAX: Final = 4
"""Concurrent openings; abandoned ones that have not ended are among them."""


class Openings:
    """Each has a thread of its own, because a backend may block it for ever.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._under_way: dict[Future[Any], str] = {}
        self._stopped = False

    def within(self, seconds: float) -> Opening:
        """Raises NotNowError where too many are under way."""

        def open_it(what: str, opens: Callable[[], Opened], too_late: Callable[[Opened | None], None]) -> Opened:
            return self._open(what, opens, seconds, too_late)

        return open_it

    def stop(self) -> None:
        """Wake up the callers that wait: what they open is abandoned."""
        with self._lock:
            self._stopped = True
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()

    def _open(
        self, what: str, open_it: Callable[[], Opened], seconds: float, too_late: Callable[[Opened | None], None]
    ) -> Opened:
        future: Future[Opened] = Future()  # pending until it has a result, so that it can be cancelled until then
        with self._lock:
            if self._stopped:
                raise NotNowError("the server is stopping")
            if len(self._under_way) >= OPENINGS_MAX:
                raise NotNowError(
                    f"{OPENINGS_MAX} are being opened, which is the most: {', '.join(sorted(self._under_way.values()))}; "
                    "try again when one has ended, or restart the server where none ever does"
                )
            arguments = (future, what, open_it, too_late)
            threading.Thread(target=self._run, args=arguments, name=f"opening-{what}", daemon=True).start()
            self._under_way[future] = what
        try:
            return future.result(seconds)
        except TimeoutError:  # the time is over, or `open_it` raised it
            if not future.cancel():
                return future.result()
            raise OpeningAbandonedError(
                f"{what} was not opened within {seconds:.0f} s and was abandoned; "
                "see whether what it depends on answers, and try again"
            ) from None
        except CancelledError:
            raise OpeningAbandonedError("the server is stopping") from None

    def _run(
        self,
        future: Future[Opened],
        what: str,
        open_it: Callable[[], Opened],
        too_late: Callable[[Opened | None], None],
    ) -> None:
        opened: Opened | None = None
        error: Exception | SystemExit | None = None
        try:
            opened = open_it()
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a plugin boundary: raised again for the caller
            error = raised
        try:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(opened)  # type: ignore[arg-type]  # what `open_it` returned
        except InvalidStateError:  # it was abandoned
            if error is not None:
                logger.warning("an abandoned opening failed what=%s error=%s", what, error)
            else:
                logger.warning("was opened too late, and is closed again what=%s", what)
            too_late(opened)
        finally:
            with self._lock:
                del self._under_way[future]
