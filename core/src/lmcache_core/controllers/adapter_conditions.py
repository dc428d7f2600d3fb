"""Conditions of an L2 adapter that the server finds from outside; the adapter's own are added to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.contracts.counts import VerbCounts
from lmcache_core.contracts.l2_adapter import CircuitState
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.conditions import RecentGrowth, counts_of
from lmcache_core.model.results import Outcome

FAILED_SHARE_MAX: Final = 0.01
"""Of a minute's objects of one kind of job."""
MOMENT_SECONDS: Final = 10.0
"""After this time without a failure, an adapter no longer counts as failing."""
_FAILED: Final = (Outcome.FAILED.value, Outcome.TIMED_OUT.value)
_REFUSED: Final = (Outcome.REJECTED.value,)
_NOUNS: Final = {"store": "stores", "lookup": "lookups", "load": "loads", "delete": "deletes"}


def adapter_subject(name: str) -> str:
    """The subject of an L2 adapter's conditions."""
    return f"adapter {name}"


class AdapterWatch:
    """Counts of all adapters, as far as their conditions need them.  Not safe from several threads at once."""

    def __init__(self, clock: Clock) -> None:
        self._minute = RecentGrowth(clock)
        self._moment = RecentGrowth(clock, MOMENT_SECONDS)

    def conditions(self, client: AdapterClient) -> Iterator[Condition]:
        """To be asked once per second.  Never blocks for longer than the adapter's `circuit` does."""
        subject = adapter_subject(client.name)
        if overdue := client.jobs.overdue:
            yield Condition(
                "adapter_silent",
                Severity.WARNING,
                f"{overdue} jobs have no answer within {client.timeout_seconds:g} s; it is given nothing more until it answers",
                "see whether its backend hangs; --l2-timeout-seconds says how long it may take",
                subject,
                counts_of(overdue=overdue),
            )
        circuit = client.circuit()
        if circuit is not None and circuit.state is not CircuitState.CLOSED:
            yield Condition(
                "adapter_paused",
                Severity.WARNING,
                f"its backend failed {circuit.failures_in_a_row} times in a row and is left alone; from time to time a probe "
                "asks it",
                "see the log for what it answered, and whether it can be reached",
                subject,
                counts_of(failures_in_a_row=circuit.failures_in_a_row, openings=circuit.openings),
            )
        counts = client.counters.snapshot()
        yield from self._failing(subject, counts.verbs)
        if damaged := self._minute.of((subject, "damaged"), counts.damaged):
            yield Condition(
                "adapter_objects_damaged",
                Severity.WARNING,
                f"{damaged:.0f} objects of the last minute were not what was stored; none of them was served",
                "see whether its medium fails; the log names the objects, which are stored anew when they are computed again",
                subject,
                counts_of(objects=damaged),
            )

    def _failing(self, subject: str, verbs: Mapping[str, VerbCounts]) -> Iterator[Condition]:
        failing: dict[str, _Share] = {}
        for verb, row in verbs.items():
            if share := self._share(subject, verb, row, _FAILED):
                failing[_NOUNS[verb]] = share
        if failing:
            yield Condition(
                "adapter_jobs_fail",
                Severity.WARNING,
                "of the last minute, "
                + ", ".join(f"{share.bad:.0f} of {share.answered:.0f} {noun}" for noun, share in failing.items())
                + " failed",
                "see the log for what its backend answered",
                subject,
                counts_of(
                    failed=sum(share.bad for share in failing.values()),
                    objects=sum(share.answered for share in failing.values()),
                ),
            )
        if refused := self._share(subject, "store", verbs["store"], _REFUSED):
            yield Condition(
                "adapter_refuses",
                Severity.WARNING,
                f"it refused {refused.bad:.0f} of the {refused.answered:.0f} objects that it was to store in the last minute",
                "see whether it is full, whether objects are longer than it takes, and whether foreign files are in the way",
                subject,
                counts_of(refused=refused.bad, objects=refused.answered),
            )

    def _share(self, subject: str, verb: str, row: VerbCounts, bad: Collection[str]) -> _Share | None:
        """Of the last minute's objects, where it is too large, and it has not gone well since."""
        minute, moment = (
            {outcome: growth.of((subject, verb, bad, outcome), count) for outcome, count in row.outcomes.items()}
            for growth in (self._minute, self._moment)
        )
        share = _Share(sum(minute.get(outcome, 0.0) for outcome in bad), sum(minute.values()))
        goes_well = any(moment.values()) and not any(moment.get(outcome, 0.0) for outcome in bad)
        return share if share.bad > FAILED_SHARE_MAX * share.answered and not goes_well else None


class _Share(NamedTuple):
    bad: float
    answered: float
