"""How much is logged, changed while the server runs."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import Final

from lmcache_core import LMCacheError, Publisher, SettingChanged
from lmcache_http.admin_api.server import LoggerLevel

_ROOT: Final = "root"
_ABSENT: Final = "GET /loglevel lists some; a logger is there once it was used"


class UnknownLoggerError(LMCacheError):
    """No logger has this name."""


class LogLevels:
    """The loggers of this process.  Safe from any thread."""

    def __init__(self, events: Publisher) -> None:
        """`events` gets a SettingChanged for each level that is set."""
        self._events = events

    def own(self) -> list[LoggerLevel]:
        """Loggers with a level of their own, the root among them."""
        names = [_ROOT, *sorted(logging.root.manager.loggerDict)]
        return [_row(name) for name in names if name == _ROOT or _own_level(name)]

    def set(self, logger: str, level: str | None) -> LoggerLevel:
        """Raises UnknownLoggerError for a name under which nothing logs, and for a root without a level."""
        known = logging.root.manager.loggerDict
        if logger != _ROOT and logger not in known:
            guesses = get_close_matches(logger, known, n=1)
            remedy = f"did you mean '{guesses[0]}'?" if guesses else _ABSENT
            raise UnknownLoggerError(f"no logger is called {logger!r}; {remedy}")
        before = _row(logger)
        logging.getLogger(logger).setLevel(level or (logging.WARNING if logger == _ROOT else logging.NOTSET))
        after = _row(logger)
        self._events.publish(SettingChanged(f"log_level:{logger}", before.effective, after.effective))
        return after


def _own_level(name: str) -> int:
    return logging.getLogger(name).level if isinstance(logging.root.manager.loggerDict[name], logging.Logger) else 0


def _row(name: str) -> LoggerLevel:
    logger = logging.getLogger(name)
    own = logging.getLevelName(logger.level) if logger.level else None
    return LoggerLevel(logger=name, own=own, effective=logging.getLevelName(logger.getEffectiveLevel()))
