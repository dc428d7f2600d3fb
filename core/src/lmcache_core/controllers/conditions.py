"""The conditions of a running server: collected from its parts and its plugins, dated, and logged when they begin and end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import ActiveCondition, Condition, ServerState, Severity
from lmcache_core.model.error_message import error_message

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two looks of the thread.  Whoever reads the conditions looks, too."""
LOG_AGAIN_SECONDS: Final = 60.0
"""A condition that comes and goes is logged so often at most."""

Key = tuple[str, str]
"""Name and subject."""
Source = Callable[[], Iterable[Condition]]
_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}
_ORDER: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


class _Active(NamedTuple):
    shown: ActiveCondition
    began: float
    """By the monotonic clock."""
    is_logged: bool


class Conditions:
    """`run` is the thread's body; everything else is for any thread.

    A source is a function that yields the conditions which hold now.  It must not block; it is never called by two threads
    at once.  What plugins report comes through a `PluginReports`, which may block."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # held while sources are asked
        self._sources: tuple[Source, ...] = ()
        self._refreshes: tuple[Callable[[], None], ...] = ()
        self._active: dict[Key, _Active] = {}
        self._logged: dict[Key, tuple[float, int]] = {}
        """When the beginning was logged last, and how many beginnings were left out since."""
        self._stopping = threading.Event()

    def add(self, source: Source, refresh: Callable[[], None] | None = None) -> None:
        """`refresh` is called by the thread, once in `LOOK_SECONDS`, before it looks; it may take a while."""
        with self._lock:
            self._sources = (*self._sources, source)
            if refresh is not None:
                self._refreshes = (*self._refreshes, refresh)

    def active(self) -> tuple[ActiveCondition, ...]:
        """What holds now, the severest first, then the oldest."""
        with self._lock:
            self._look()
            shown = [each.shown for each in self._active.values()]
        return tuple(sorted(shown, key=lambda each: (_ORDER.index(each.condition.severity), each.since)))

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.turn()

    def turn(self) -> None:
        """What the thread does once in `LOOK_SECONDS`."""
        for refresh in self._refreshes:
            refresh()
        self.active()

    def stop(self) -> None:
        self._stopping.set()

    # --- under the lock

    def _look(self) -> None:
        now = self._clock.monotonic()
        found = {(each.name, each.subject): each for source in self._sources for each in _asked(source)}
        for key in self._active.keys() - found.keys():
            self._end(key, self._active.pop(key), now)
        for key, condition in found.items():
            before = self._active.get(key)
            since = before.shown.since if before else round(self._clock.wall_ns() / 1e9, 3)
            began = before.began if before else now
            is_logged = self._begin(key, condition, now, is_new=before is None) if _is_silent(before) else True
            self._active[key] = _Active(ActiveCondition(condition, since), began, is_logged)

    def _begin(self, key: Key, condition: Condition, now: float, *, is_new: bool) -> bool:
        """Log it, unless that was done a moment ago."""
        at, left_out = self._logged.get(key, (float("-inf"), 0))
        if now - at < LOG_AGAIN_SECONDS:
            self._logged[key] = (at, left_out + is_new)
            return False
        self._logged[key] = (now, 0)
        logger.log(
            _LEVELS[condition.severity],
            "condition began name=%s subject=%s severity=%s reason=%r remedy=%r not_logged=%d",
            condition.name,
            condition.subject or "server",
            condition.severity.value,
            condition.reason,
            condition.remedy,
            max(0, left_out - (not is_new)),
        )
        return True

    def _end(self, key: Key, active: _Active, now: float) -> None:
        if active.is_logged:
            condition = active.shown.condition
            logger.log(
                logging.INFO,
                "condition ended name=%s subject=%s lasted_seconds=%.1f",
                condition.name,
                condition.subject or "server",
                now - active.began,
            )
        if len(self._logged) > 4 * (len(self._active) + 64):
            self._logged = {key: (at, n) for key, (at, n) in self._logged.items() if now - at < LOG_AGAIN_SECONDS}


def _asked(source: Source) -> list[Condition]:
    found: list[Condition] = []
    try:
        found.extend(source())
    except Exception as error:
        logger.debug("a source of conditions failed", exc_info=True)
        reason = f"what is wrong cannot be said: {type(error).__name__}: {error_message(error)}"
        found.append(Condition("conditions_unknown", Severity.WARNING, reason, "report it", "server"))
    return found


def _is_silent(active: _Active | None) -> bool:
    return active is None or not active.is_logged


def server_state(active: Sequence[ActiveCondition]) -> ServerState:
    severities = {each.condition.severity for each in active}
    if Severity.CRITICAL in severities:
        return ServerState.UNHEALTHY
    return ServerState.DEGRADED if Severity.WARNING in severities else ServerState.HEALTHY


def state_reason(active: Sequence[ActiveCondition]) -> str:
    """Why the server is not healthy, in one line; empty where it is."""
    return "; ".join(each.condition.sentence for each in active if each.condition.severity is not Severity.INFO)


def is_well(subject: str, active: Sequence[ActiveCondition]) -> bool:
    """Is nothing about it worse than INFO?  What a plugin reports of a part of it counts, too."""
    return not any(
        each.condition.severity is not Severity.INFO
        and (each.condition.subject == subject or each.condition.subject.startswith(f"{subject}, "))
        for each in active
    )


def counts_of(**counts: float) -> Mapping[str, int]:
    """Figures of a condition."""
    return {name: int(count) for name, count in counts.items()}
