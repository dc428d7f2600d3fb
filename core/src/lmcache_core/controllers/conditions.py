"""The conditions of a running server: collected from its parts and its plugins, dated, and logged when they begin and end."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import NAME_PATTERN, ActiveCondition, Condition, Severity
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)


WINDOW_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 1.0


class RecentGrowth:
    """Of counters that only grow, what came within the last `seconds`, to within a second.  A counter that is met for the
    first time has grown from 0.  Not safe from several threads at once."""

    def __init__(self, clock: Clock, seconds: float = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._samples: dict[Hashable, deque[tuple[float, float]]] = {}
        """Time and value, the oldest first; one of them may be older than the window."""

    def of(self, counter: Hashable, value: float) -> float:
        """To be asked again and again, at least once per second, with the counter's value of now."""
        now = self._clock.monotonic()
        samples = self._samples.setdefault(counter, deque([(now, 0.0)]))
        if now - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((now, value))
        while len(samples) > 1 and samples[1][0] <= now - self._seconds:
            samples.popleft()
        return max(0.0, value - samples[0][1])


ANSWER_SECONDS: Final = 0.2
"""How long the thread that asks waits for one answer.  What comes later counts at the next look."""
SILENT_SECONDS: Final = 5.0
"""An object that has not answered for this time is a condition of its own."""
CONDITIONS_MAX: Final = 32
"""Of one object."""


class Reporter(NamedTuple):
    """An object of a plugin: what it is called, and its `conditions`."""

    subject: str
    conditions: Callable[[], Iterable[Any]]
    severity_max: Severity = Severity.WARNING
    """The most severe condition that it may report: the server serves without it."""


class _Asked:
    """One object, and what it said last."""

    def __init__(self, reporter: Reporter, now: float) -> None:
        self.reporter = reporter
        self.said: tuple[Condition, ...] = ()
        self.started = now
        self.thread: threading.Thread | None = None

    def ask(self, now: float) -> None:
        if self.thread is not None and self.thread.is_alive():
            return
        self.started = now
        self.thread = threading.Thread(target=self._ask, name=f"conditions-{self.reporter.subject}", daemon=True)
        self.thread.start()
        self.thread.join(ANSWER_SECONDS)

    def silent_seconds(self, now: float) -> float:
        return now - self.started if self.thread is not None and self.thread.is_alive() else 0.0

    def _ask(self) -> None:
        subject = self.reporter.subject
        try:
            said = [self._checked(each) for each in self.reporter.conditions()]
        except BaseException as error:  # a plugin's boundary
            logger.debug("conditions() failed subject=%s", subject, exc_info=True)
            reason = f"its conditions() failed: {type(error).__name__}: {error_message(error)}"
            said = [Condition("conditions_unknown", Severity.WARNING, reason, _REPORT_TO_AUTHOR, subject)]
        self.said = tuple(said[:CONDITIONS_MAX])

    def _checked(self, said: Any) -> Condition:
        """Raises TypeError or ValueError."""
        if not isinstance(said, Condition):
            raise TypeError(f"it reported {said!r:.80}, which is not a Condition")
        if not NAME_PATTERN.fullmatch(said.name):
            raise ValueError(f"{said.name!r:.80} is not a name of a condition: expected {NAME_PATTERN.pattern}")
        own = self.reporter.subject
        subject = f"{own}, {said.subject}" if said.subject else own
        severest = self.reporter.severity_max
        is_too_severe = said.severity is Severity.CRITICAL and severest is not Severity.CRITICAL
        return said._replace(
            subject=subject,
            severity=severest if is_too_severe else Severity(said.severity),
            reason=str(said.reason),
            remedy=str(said.remedy),
            counts={str(name): int(count) for name, count in said.counts.items()},
        )


_REPORT_TO_AUTHOR: Final = "report it to the author of the plugin"


class PluginReports:
    """`refresh` belongs to one thread, `conditions` to any: it says what was answered last, and never calls a plugin."""

    def __init__(self, clock: Clock, reporters: Callable[[], Sequence[Reporter]]) -> None:
        """`reporters` names those that are there now; an object that is not named any more has no conditions."""
        self._clock = clock
        self._reporters = reporters
        self._asked: dict[str, _Asked] = {}

    def refresh(self) -> None:
        now = self._clock.monotonic()
        before, asked = self._asked, {}
        for reporter in self._reporters():
            known = before.get(reporter.subject)
            is_same = known is not None and known.reporter.conditions == reporter.conditions
            asked[reporter.subject] = known if known is not None and is_same else _Asked(reporter, now)
        self._asked = asked
        for each in asked.values():
            each.ask(now)

    def conditions(self) -> Iterator[Condition]:
        now = self._clock.monotonic()
        for each in self._asked.values():
            yield from each.said
            if (seconds := each.silent_seconds(now)) > SILENT_SECONDS:
                yield Condition(
                    "conditions_unknown",
                    Severity.WARNING,
                    f"its conditions() has not come back for {seconds:.0f} s; what it said before may be old",
                    "a file system or a service that it asks may hang: look there; else " + _REPORT_TO_AUTHOR,
                    each.reporter.subject,
                )


LOOK_SECONDS: Final = 1.0
"""Between two checks by the thread.  Reading the conditions checks them, too."""
LOG_AGAIN_SECONDS: Final = 60.0
"""A condition that comes and goes is logged so often at most."""

Key = tuple[str, str]
"""Name and subject."""
Source = Callable[[], Iterable[Condition]]
_LEVELS: Final = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
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
        """Active conditions, the most severe first, then the oldest."""
        with self._lock:
            self._look()
            shown = [each.shown for each in self._active.values()]
        return tuple(sorted(shown, key=lambda each: (_ORDER.index(each.condition.severity), each.since)))

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.check()

    def check(self) -> None:
        """Refresh the reports and log changes; the thread calls it every `LOOK_SECONDS`."""
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
            is_logged = (before is not None and before.is_logged) or self._begin(
                key, condition, now, is_new=before is None
            )
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


def is_well(subject: str, active: Sequence[ActiveCondition]) -> bool:
    """True without a condition worse than INFO of this subject or of a part of it."""
    return not any(
        each.condition.severity is not Severity.INFO
        and (each.condition.subject == subject or each.condition.subject.startswith(f"{subject}, "))
        for each in active
    )


def counts_of(**counts: float) -> Mapping[str, int]:
    """Figures of a condition."""
    return {name: int(count) for name, count in counts.items()}
