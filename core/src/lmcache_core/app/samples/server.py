"""Samples of the server itself: requests, workers, events, threads and the process."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.conditions import ActiveCondition, ServerState, server_state
from lmcache_core.contracts.samples import BOUNDS_SECONDS, Sample, SampleKind, kinds_in
from lmcache_core.events.bus import BusCounters
from lmcache_core.events.subscriber_queue import SubscriberStatus
from lmcache_core.model.names import parse_model_name

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

BUILD: Final = SampleKind(
    "lmcache.build.info",
    "1",
    "1, with the server's version and the kernels it runs on.",
    is_counter=False,
    labels=("version", "python", "native"),
)
UPTIME: Final = SampleKind("lmcache.uptime", "s", "Seconds since the server was started.", is_counter=False)
HEALTHY: Final = SampleKind(
    "lmcache.healthy", "1", "1: the health check says healthy; 0: degraded or unhealthy.", is_counter=False
)
CONDITION: Final = SampleKind(
    "lmcache.condition",
    "1",
    "1 while a condition lasts: something that is not as it should be.",
    is_counter=False,
    labels=("name", "severity", "subject"),
)
REQUESTS: Final = SampleKind(
    "lmcache.requests",
    "{request}",
    "Messages of engines that were answered: ok, error (a fault of the server) or refused.",
    is_counter=True,
    labels=("operation", "outcome"),
)
REQUEST_TIMES: Final = SampleKind(
    "lmcache.request.duration",
    "s",
    "From the arrival of a message of an engine to its answer.",
    is_counter=True,
    labels=("operation", "outcome"),
    bounds=BOUNDS_SECONDS,
)
REQUESTS_RECEIVED: Final = SampleKind(
    "lmcache.requests.received", "{request}", "Messages of engines with a readable envelope.", is_counter=True
)
REQUESTS_DROPPED: Final = SampleKind(
    "lmcache.requests.dropped",
    "{request}",
    "Not answered at all: no readable envelope, or the connection is closed.",
    is_counter=True,
)
ANSWERS_WAITING: Final = SampleKind(
    "lmcache.answers.waiting", "By", "Answers that wait because their connection reads slowly.", is_counter=False
)
REQUESTS_WAITING: Final = SampleKind(
    "lmcache.requests.waiting", "{request}", "Messages that wait for a thread.", is_counter=False, labels=("pool",)
)
REQUESTS_OLDEST: Final = SampleKind(
    "lmcache.requests.oldest_age",
    "s",
    "How long the oldest message has been with a thread of a pool, or waited for it.",
    is_counter=False,
)
UNSALTED: Final = SampleKind(
    "lmcache.requests.unsalted", "{request}", "Messages refused because they have no cache salt.", is_counter=True
)
CONNECTIONS: Final = SampleKind(
    "lmcache.connections", "{connection}", "Connections of engines that are open.", is_counter=False
)
CONNECTIONS_UNREAD: Final = SampleKind(
    "lmcache.connections.unread",
    "{connection}",
    "Connections that were closed because they did not read their answers.",
    is_counter=True,
)
HANDSHAKES: Final = SampleKind(
    "lmcache.connections.handshakes",
    "{handshake}",
    "Connections that were accepted: ok, refused (no ZMTP 3), incomplete (closed by the peer, or silent, before the end), or "
    "forbidden (the peer's user may not connect).",
    is_counter=True,
    labels=("outcome",),
)
WORKERS: Final = SampleKind(
    "lmcache.workers",
    "{worker}",
    "Registered workers, by model, by what decides their KV bytes (model_identity; empty: they do not say) and by how chunks "
    "travel: shared_memory or inline.",
    is_counter=False,
    labels=("model_name", "model_identity", "transport"),
)
LOOKUPS_OPEN: Final = SampleKind(
    "lmcache.lookup.open", "{lookup}", "Lookups whose request is not over.", is_counter=False
)
LOOKUPS_OLDEST: Final = SampleKind(
    "lmcache.lookup.oldest_age", "s", "How long ago the oldest of these began.", is_counter=False
)
PROMPT_BYTES: Final = SampleKind(
    "lmcache.prompts.usage", "By", "Memory of the prompts that are remembered.", is_counter=False
)
PROMPT_TENANTS: Final = SampleKind(
    "lmcache.prompts.tenants", "{tenant}", "Cache salts of which prompts are remembered.", is_counter=False
)
THREAD_RESTARTS: Final = SampleKind(
    "lmcache.threads.restarts", "{restart}", "Times that a thread failed.", is_counter=True, labels=("thread",)
)
THREADS_DOWN: Final = SampleKind(
    "lmcache.threads.down", "{thread}", "Threads that failed and are not running again yet.", is_counter=False
)
POLICY_FAILURES: Final = SampleKind(
    "lmcache.policy.failures",
    "{failure}",
    "Calls of a policy that raised, or returned what makes no sense.",
    is_counter=True,
    labels=("policy",),
)
CPU: Final = SampleKind("process.cpu.time", "s", "Processor time of the server.", is_counter=True, labels=("cpu.mode",))
MEMORY: Final = SampleKind("process.memory.usage", "By", "Resident memory, L1 included.", is_counter=False)
FILES: Final = SampleKind(
    "process.open_file_descriptor.count", "{file_descriptor}", "Open file descriptors.", is_counter=False
)
COLLECTIONS: Final = SampleKind(
    "cpython.gc.collections", "{collection}", "Garbage collections.", is_counter=True, labels=("cpython.gc.generation",)
)

_SUBSCRIBER: Final = ("subscriber_name",)

EVENTS_WAITING: Final = SampleKind(
    "lmcache_mp.event_bus.queue_depth", "", "Events that wait for a subscriber.", is_counter=False, labels=_SUBSCRIBER
)
EVENTS_LAG: Final = SampleKind(
    "lmcache_mp.event_bus.drain_lag_seconds",
    "",
    "How long the oldest event that waits for a subscriber has waited.",
    is_counter=False,
    labels=_SUBSCRIBER,
)
EVENTS_DROPPED: Final = SampleKind(
    "lmcache_mp.event_bus.dropped_events_total",
    "1",
    "Events that a subscriber was not given, because it was too far behind or had ended.",
    is_counter=True,
    labels=(*_SUBSCRIBER, "event"),
)
EVENTS_FAILED: Final = SampleKind(
    "lmcache_mp.event_bus.subscriber_exceptions",
    "1",
    "Times that a subscriber raised.",
    is_counter=True,
    labels=_SUBSCRIBER,
)
EVENTS_DELIVERED: Final = SampleKind(
    "lmcache.events.delivered", "{event}", "Events that a subscriber was given.", is_counter=True, labels=_SUBSCRIBER
)
EVENTS_CPU: Final = SampleKind(
    "lmcache.events.cpu.time", "s", "Processor time of a subscriber's thread.", is_counter=True, labels=_SUBSCRIBER
)
EVENTS_STATE: Final = SampleKind(
    "lmcache.events.subscribers",
    "{subscriber}",
    "Subscribers by state: ok, behind, stuck, failing, retaining or ended.",
    is_counter=False,
    labels=(*_SUBSCRIBER, "state"),
)


KINDS: Final = kinds_in(globals())

_PROC: Final = Path("/proc/self")


def server_samples(parts: Parts, uptime_seconds: float, conditions: Sequence[ActiveCondition]) -> Iterator[Sample]:
    yield BUILD.of(1, parts.info.version, sys.version.split()[0], "yes" if parts.kernels.native else "no")
    yield UPTIME.of(uptime_seconds)
    yield HEALTHY.of(server_state(conditions) is ServerState.HEALTHY)
    for condition, _ in conditions:
        yield CONDITION.of(1, condition.name, condition.severity.value, condition.subject)
    yield from _requests(parts)
    workers = Counter((worker.model_name, worker.inline) for worker in parts.engine_port.workers.everybody())
    for (model_name, inline), count in workers.items():
        model = parse_model_name(model_name)
        yield WORKERS.of(count, model.served, model.identity, "inline" if inline else "shared_memory")
    yield LOOKUPS_OPEN.of(parts.tiers.storage.lookups_open)
    yield LOOKUPS_OLDEST.of(parts.tiers.storage.oldest_lookup_seconds)
    yield PROMPT_BYTES.of(parts.engine_port.prompts.size_bytes)
    yield PROMPT_TENANTS.of(parts.engine_port.prompts.tenants)
    for name, restarts in parts.supervisor.restarts().items():
        yield THREAD_RESTARTS.of(restarts, name)
    yield THREADS_DOWN.of(parts.supervisor.down)
    for seat, _ in parts.guarded_policies():
        yield POLICY_FAILURES.of(seat.failures, seat.subject.removesuffix(" policy"))
    yield from _events(parts.bus.counters())
    yield from _process()


def _requests(parts: Parts) -> Iterator[Sample]:
    answered = parts.engine_port.router.answered()
    counters = parts.engine_port.router.counters  # later, so that no more are answered than were received
    for (operation, outcome), histogram in answered.items():
        yield REQUESTS.of(sum(histogram.counts), operation, outcome)
        yield REQUEST_TIMES.histogram_of(histogram, operation, outcome)
    yield REQUESTS_RECEIVED.of(counters.requests)
    yield REQUESTS_DROPPED.of(counters.dropped)
    yield ANSWERS_WAITING.of(counters.waiting_bytes)
    yield CONNECTIONS_UNREAD.of(counters.closed)
    yield REQUESTS_WAITING.of(parts.engine_port.pooled.waiting, parts.engine_port.pooled.name)
    yield REQUESTS_WAITING.of(parts.engine_port.affine.waiting, parts.engine_port.affine.name)
    yield REQUESTS_OLDEST.of(parts.engine_port.router.oldest_seconds)
    yield UNSALTED.of(parts.engine_port.gate.refused)
    connections = parts.engine_port.handshakes.counters
    yield CONNECTIONS.of(connections.accepted - connections.closed)
    yield HANDSHAKES.of(connections.ok, "ok")
    yield HANDSHAKES.of(connections.refused, "refused")
    yield HANDSHAKES.of(connections.incomplete, "incomplete")
    yield HANDSHAKES.of(connections.forbidden, "forbidden")


def _events(counters: BusCounters) -> Iterator[Sample]:
    """By subscriber."""
    for name, status in counters.subscribers.items():
        yield from _subscriber(name, status)


def _subscriber(name: str, status: SubscriberStatus) -> Iterator[Sample]:
    yield EVENTS_WAITING.of(status.waiting, name)
    yield EVENTS_LAG.of(status.oldest_age_seconds, name)
    for event, count in status.dropped.items():
        yield EVENTS_DROPPED.of(count, name, event)
    yield EVENTS_FAILED.of(status.failed, name)
    yield EVENTS_DELIVERED.of(status.delivered, name)
    yield EVENTS_CPU.of(status.cpu_seconds, name)
    yield EVENTS_STATE.of(1, name, status.state.value)


def _process() -> Iterator[Sample]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield CPU.of(usage.ru_utime, "user")
    yield CPU.of(usage.ru_stime, "system")
    pages = int((_PROC / "statm").read_text().split()[1])
    yield MEMORY.of(pages * resource.getpagesize())
    yield FILES.of(len(os.listdir(_PROC / "fd")))
    for generation, stats in enumerate(gc.get_stats()):
        yield COLLECTIONS.of(stats["collections"], str(generation))
