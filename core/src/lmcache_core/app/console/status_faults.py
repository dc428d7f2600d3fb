"""What in `/status` an operator should look at, although the server may still be healthy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmcache_core.app.console.loose_json import Loose
from lmcache_core.app.console.quantities import count_text, seconds_text

_FINE_PLUGINS: Final = ("active", "available", "blocked", "")
_FINE_SUBSCRIBERS: Final = ("ok", "")


def status_faults(status: Loose) -> Iterator[str]:
    """One line for each thing, by name."""
    for faults in (_memory(status / "l1"), _work(status), _plugins(status), _threads(status), _subscribers(status)):
        yield from faults


def _memory(l1: Loose) -> Iterator[str]:
    if (l1 / "census_holds").value is False:
        yield "L1: slots do not add up; please report it, with this status as JSON"
    if (l1 / "backing_is_full").value is True:
        yield "L1: the system has no more memory for it; give it more, or lower --l1-size-gb"
    if quarantined := (l1 / "quarantined").count():
        yield f"L1: {count_text(quarantined)} slots are in quarantine, until their worker or adapter lets go of them"


def _work(status: Loose) -> Iterator[str]:
    requests, store, prefetch = status / "requests", status / "store", status / "prefetch"
    if refused := (requests / "refused").count():
        yield f"requests: {count_text(refused)} were refused; the log says why"
    if dropped := (requests / "dropped").count():
        yield f"requests: {count_text(dropped)} could not be read and were dropped"
    if refused := (store / "refused").count():
        yield f"store: {count_text(refused)} objects never went to an adapter, because too much was waiting for L2"
    if late := (prefetch / "timed_out").count():
        yield f"prefetch: {count_text(late)} loads took longer than --lookup-timeout-seconds"
    for adapter in status / "l2":
        if overdue := (adapter / "jobs_overdue").count():
            yield f"adapter {(adapter / 'name').text()}: {count_text(overdue)} jobs are overdue"
        if (retry := (adapter / "circuit" / "retry_in_seconds").number()) is not None:
            yield f"adapter {(adapter / 'name').text()}: left alone after failures, next try in {seconds_text(retry)}"


def _plugins(status: Loose) -> Iterator[str]:
    for plugin in status / "plugins":
        state = (plugin / "status").text()
        if state not in _FINE_PLUGINS:
            error = (plugin / "error").text()
            yield f"plugin {(plugin / 'name').text()}: {state}" + (f": {error}" if error else "")
    for program in status / "runtime_plugins":
        state, restarts = (program / "state").text(), (program / "restarts").count()
        if restarts or (state == "waiting" and (program / "last_exit").known):
            yield (
                f"runtime plugin {(program / 'name').text()}: {state}, restarted {count_text(restarts)} times, "
                f"last {_exit(program / 'last_exit')}"
            )


def _exit(last: Loose) -> str:
    words = (
        (last / "error").text(),
        f"killed by {(last / 'signal').text()}" if (last / "signal").known else "",
        f"exit code {(last / 'code').text()}" if (last / "code").known else "",
    )
    return next(filter(None, words), "exit unknown")


def _threads(status: Loose) -> Iterator[str]:
    for name, thread in (status / "threads").items():
        error = (thread / "last_error").text()
        if (thread / "running").value is False:
            yield f"thread {name}: is down" + (f": {error}" if error else "")
        elif restarts := (thread / "restarts").count():
            yield f"thread {name}: was restarted {count_text(restarts)} times" + (f": {error}" if error else "")


def _subscribers(status: Loose) -> Iterator[str]:
    events = status / "events"
    for name, lane in (events / "subscribers").items():
        state, error = (lane / "state").text(), (lane / "last_error").text()
        if state not in _FINE_SUBSCRIBERS:
            yield f"subscriber {name}: {state}" + (f": {error}" if error else "")
        if dropped := (lane / "dropped").total():
            yield f"subscriber {name}: {count_text(dropped)} events never reached it"
    if not (events / "subscribers").known and (dropped := (events / "dropped").total()):
        yield f"events: {count_text(dropped)} were dropped"
    if not (events / "subscribers").known and (failed := (events / "failed").total()):
        yield f"events: {count_text(failed)} made a subscriber fail"
