"""What is wrong with an L2 adapter, as the server sees it from outside; what it reports itself comes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.conditions import counts_of
from lmcache_core.controllers.port_tally import VerbTally
from lmcache_core.jobs.circuit_breaker import CircuitState
from lmcache_core.jobs.recent_growth import RecentGrowth
from lmcache_core.model.results import Outcome

FAILED_SHARE_MAX: Final = 0.01
"""Of a minute's objects of one kind of job."""
_FAILED: Final = (Outcome.FAILED.value, Outcome.TIMED_OUT.value)
_NOUNS: Final = {"store": "stores", "lookup": "lookups", "load": "loads", "delete": "deletes"}


def adapter_subject(name: str) -> str:
    """What conditions of an L2 adapter are about."""
    return f"adapter {name}"


def adapter_conditions(port: AdapterPort, growth: RecentGrowth) -> Iterator[Condition]:
    """Never blocks for longer than the adapter's `circuit` does."""
    subject = adapter_subject(port.name)
    if overdue := port.overdue:
        yield Condition(
            "adapter_silent",
            Severity.WARNING,
            f"{overdue} jobs have no answer within {port.timeout_seconds:g} s; it is given nothing more until it answers",
            "see whether its backend hangs; --l2-timeout-seconds says how long it may take",
            subject,
            counts_of(overdue=overdue),
        )
    circuit = port.circuit()
    if circuit is not None and circuit.state is not CircuitState.CLOSED:
        yield Condition(
            "adapter_paused",
            Severity.WARNING,
            "its backend failed again and again and is left alone; a probe asks it from time to time",
            "see the log for what it answered, and whether it can be reached",
            subject,
            counts_of(failures_in_a_row=circuit.failures_in_a_row, openings=circuit.openings),
        )
    yield from _failing(subject, port.tally.account().verbs, growth)


def _failing(subject: str, verbs: Mapping[str, VerbTally], growth: RecentGrowth) -> Iterator[Condition]:
    grown = {
        verb: {outcome: growth.of((subject, verb, outcome), count) for outcome, count in row.outcomes.items()}
        for verb, row in verbs.items()
    }
    failing = {}
    for verb, outcomes in grown.items():
        failed, answered = sum(outcomes.get(name, 0.0) for name in _FAILED), sum(outcomes.values())
        if failed > FAILED_SHARE_MAX * answered:
            failing[_NOUNS[verb]] = (failed, answered)
    if failing:
        yield Condition(
            "adapter_jobs_fail",
            Severity.WARNING,
            "of the last minute, "
            + ", ".join(f"{failed:.0f} of {answered:.0f} {noun}" for noun, (failed, answered) in failing.items())
            + " failed",
            "see the log for what its backend answered",
            subject,
            counts_of(
                failed=sum(failed for failed, _ in failing.values()),
                objects=sum(answered for _, answered in failing.values()),
            ),
        )
    refused, stored = grown["store"].get(Outcome.REJECTED.value, 0.0), sum(grown["store"].values())
    if refused > FAILED_SHARE_MAX * stored:
        yield Condition(
            "adapter_refuses",
            Severity.WARNING,
            f"it refused {refused:.0f} of the {stored:.0f} objects that it was to store in the last minute",
            "see whether it is full, whether objects are longer than it takes, and whether foreign files are in the way",
            subject,
            counts_of(refused=refused, objects=stored),
        )
