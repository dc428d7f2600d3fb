"""Parts of plugins that are opened beside a running server, within a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from lmcache_core.contracts.server_control import NotNowError

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

OPENINGS_MAX: Final = 4
"""Concurrent openings; abandoned ones that have not ended are among them."""


class OpeningGivenUpError(NotNowError):
    """The opening exceeded its time limit.  Its result is handed to `too_late`."""


class Openings:
    """Each has a thread of its own, because a backend may block it for ever.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._under_way: set[_Opening[Any]] = set()
        self._stopped = False

    def open(
        self,
        what: str,
        open_it: Callable[[], Opened],
        seconds: float,
        too_late: Callable[[Opened | None], None] = lambda opened: None,
    ) -> Opened:
        """What `open_it` returns, which is the caller's from now on.  Raises what it raises, OpeningGivenUpError after this
        number of seconds, and NotNowError where too many are under way.  After OpeningGivenUpError, and only then, `too_late`
        is called when it has ended: with what was opened, or with None where that failed."""
        opening = _Opening(what, open_it, too_late, self._forget)
        with self._lock:
            if self._stopped:
                raise NotNowError("the server is stopping")
            if len(self._under_way) >= OPENINGS_MAX:
                names = ", ".join(sorted(each.what for each in self._under_way))
                raise NotNowError(
                    f"{OPENINGS_MAX} are being opened, which is the most: {names}; "
                    "try again when one has ended, or restart the server where none ever does"
                )
            opening.start()
            self._under_way.add(opening)
        return opening.wait(seconds)

    def stop(self) -> None:
        """Stop waiting."""
        with self._lock:
            self._stopped = True
            under_way = list(self._under_way)
        for opening in under_way:
            opening.stop()

    def _forget(self, opening: _Opening[Any]) -> None:
        with self._lock:
            self._under_way.discard(opening)


class _Opening(Generic[Opened]):
    def __init__(
        self,
        what: str,
        open_it: Callable[[], Opened],
        too_late: Callable[[Opened | None], None],
        ended: Callable[[_Opening[Any]], None],
    ) -> None:
        self.what: Final = what
        self._open = open_it
        self._too_late = too_late
        self._ended = ended
        self._lock = threading.Lock()  # guards the four below
        self._given_up = False
        self._stopping = False
        self._opened: Opened | None = None
        self._error: Exception | SystemExit | None = None
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"opening-{self.what}", daemon=True).start()

    def wait(self, seconds: float) -> Opened:
        self._over.wait(seconds)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._opened is not None:
                return self._opened
            self._given_up = True
            is_stopping = self._stopping
        if is_stopping:
            raise OpeningGivenUpError("the server is stopping")
        raise OpeningGivenUpError(
            f"{self.what} was not opened within {seconds:.0f} s and was abandoned; "
            "see whether what it depends on answers, and try again"
        )

    def stop(self) -> None:
        """Wake up the callers that wait."""
        with self._lock:
            self._stopping = True
        self._over.set()

    def _run(self) -> None:
        opened: Opened | None = None
        error: Exception | SystemExit | None = None
        try:
            opened = self._open()
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a plugin boundary: raised again for who waits
            error = raised
        with self._lock:
            nobody_waits = self._given_up
            if not nobody_waits:
                self._opened, self._error = opened, error
        self._over.set()
        try:
            if nobody_waits:
                self._come_too_late(opened, error)
        finally:
            self._ended(self)

    def _come_too_late(self, opened: Opened | None, error: BaseException | None) -> None:
        if error is not None:
            logger.warning("an abandoned opening failed what=%s error=%s", self.what, error)
        else:
            logger.warning("was opened too late, and is closed again what=%s", self.what)
        self._too_late(opened)
