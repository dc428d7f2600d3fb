"""How much is logged, changed while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher, SettingChanged
from lmcache_core.contracts.server_control import LoggerLevel, UnknownLoggerError
from lmcache_core.model.spelling import nearest

_ROOT: Final = "root"


class LogLevels:
    """The loggers of this process.  Safe from any thread."""

    def __init__(self, clock: Clock, events: Publisher) -> None:
        self._clock, self._events = clock, events

    def own(self) -> Sequence[LoggerLevel]:
        names = [_ROOT, *sorted(logging.root.manager.loggerDict)]
        return [_row(name) for name in names if name == _ROOT or _own_level(name)]

    def set(self, logger: str, level: str | None) -> LoggerLevel:
        """Raises UnknownLoggerError for a name under which nothing logs, and for a root without a level."""
        known = logging.root.manager.loggerDict
        if logger != _ROOT and logger not in known:
            guess = nearest(logger, known)
            remedy = (
                f"did you mean '{guess}'?" if guess else "GET /loglevel lists some; a logger is there once it was used"
            )
            raise UnknownLoggerError(f"no logger is called {logger!r}; {remedy}")
        before = _row(logger)
        logging.getLogger(logger).setLevel(level or (logging.WARNING if logger == _ROOT else logging.NOTSET))
        after = _row(logger)
        self._events.publish(
            SettingChanged(
                at=self._clock.wall_ns() / 1e9,
                name=f"log_level:{logger}",
                before=before.effective,
                after=after.effective,
            )
        )
        return after


def _own_level(name: str) -> int:
    return logging.getLogger(name).level if isinstance(logging.root.manager.loggerDict[name], logging.Logger) else 0


def _row(name: str) -> LoggerLevel:
    logger = logging.getLogger(name)
    own = logging.getLevelName(logger.level) if logger.level else None
    return LoggerLevel(logger=name, own=own, effective=logging.getLevelName(logger.getEffectiveLevel()))
