"""Asks the objects of plugins for their conditions, without waiting for one that does not come back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import NAME_PATTERN, Condition, Severity
from lmcache_core.model.error_message import error_message

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.2
"""How long the thread that asks waits for one answer.  What comes later counts at the next look."""
SILENT_SECONDS: Final = 5.0
"""An object that has not answered for so long is a condition of its own."""
CONDITIONS_MAX: Final = 32
"""Of one object."""


class Reporter(NamedTuple):
    """An object of a plugin: what it is called, and its `conditions`."""

    subject: str
    conditions: Callable[[], Iterable[Any]]
    severity_max: Severity = Severity.WARNING
    """What it reports as severer than this counts as this: the server serves without it."""


class _Asked:
    """One object, and what it said last."""

    def __init__(self, reporter: Reporter, now: float) -> None:
        self.reporter = reporter
        self.said: tuple[Condition, ...] = ()
        self.begun = now
        self.thread: threading.Thread | None = None

    def ask(self, now: float) -> None:
        if self.thread is not None and self.thread.is_alive():
            return
        self.begun = now
        self.thread = threading.Thread(target=self._ask, name=f"conditions-{self.reporter.subject}", daemon=True)
        self.thread.start()
        self.thread.join(PATIENCE_SECONDS)

    def silent_seconds(self, now: float) -> float:
        return now - self.begun if self.thread is not None and self.thread.is_alive() else 0.0

    def _ask(self) -> None:
        subject = self.reporter.subject
        try:
            said = [self._checked(each) for each in self.reporter.conditions()]
        except BaseException as error:  # a plugin's boundary
            logger.debug("conditions() failed subject=%s", subject, exc_info=True)
            reason = f"its conditions() failed: {type(error).__name__}: {error_message(error)}"
            said = [Condition("conditions_unknown", Severity.WARNING, reason, _TELL_ITS_AUTHOR, subject)]
        self.said = tuple(said[:CONDITIONS_MAX])

    def _checked(self, said: Any) -> Condition:
        """Raises TypeError or ValueError."""
        if not isinstance(said, Condition):
            raise TypeError(f"it reported {said!r:.80}, which is no Condition")
        if not NAME_PATTERN.fullmatch(said.name):
            raise ValueError(f"{said.name!r:.80} is no name of a condition: expected {NAME_PATTERN.pattern}")
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


_TELL_ITS_AUTHOR: Final = "report it to the author of the plugin"


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
                    "a file system or a service that it asks may hang: look there; else " + _TELL_ITS_AUTHOR,
                    each.reporter.subject,
                )
