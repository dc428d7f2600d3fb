"""Samples of the server itself: requests, workers, events, threads and the process."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmcache_core import (
    BOUNDS_SECONDS,
    PortCounts,
    Sample,
    ServerCounts,
    ServerState,
    ServerView,
    SubscriberStatus,
    parse_model_name,
    server_state,
)
from lmcache_observability.samples.kinds import counter, gauge, histogram, kinds_in

BUILD: Final = gauge(
    "lmcache.build.info", "1", "1, with the server's version and the kernels it runs on.", "version", "python", "native"
)
UPTIME: Final = gauge("lmcache.uptime", "s", "Seconds since the server was started.")
HEALTHY: Final = gauge("lmcache.healthy", "1", "1: the health check says healthy; 0: degraded or unhealthy.")
CONDITION: Final = gauge(
    "lmcache.condition",
    "1",
    "1 while a condition lasts: something that is not as it should be.",
    "name",
    "severity",
    "subject",
)
REQUESTS: Final = counter(
    "lmcache.requests",
    "{request}",
    "Messages of engines that were answered: ok, error (a fault of the server) or refused.",
    "operation",
    "outcome",
)
REQUEST_TIMES: Final = histogram(
    "lmcache.request.duration",
    "s",
    "From the arrival of a message of an engine to its answer.",
    BOUNDS_SECONDS,
    "operation",
    "outcome",
)
REQUESTS_RECEIVED: Final = counter(
    "lmcache.requests.received", "{request}", "Messages of engines with a readable envelope."
)
REQUESTS_DROPPED: Final = counter(
    "lmcache.requests.dropped", "{request}", "Not answered at all: no readable envelope, or the connection is closed."
)
ANSWERS_WAITING: Final = gauge(
    "lmcache.answers.waiting", "By", "Answers that wait because their connection reads slowly."
)
REQUESTS_WAITING: Final = gauge("lmcache.requests.waiting", "{request}", "Messages that wait for a thread.", "pool")
REQUESTS_OLDEST: Final = gauge(
    "lmcache.requests.oldest_age",
    "s",
    "How long the oldest message has been with a thread of a pool, or waited for it.",
)
UNSALTED: Final = counter("lmcache.requests.unsalted", "{request}", "Messages refused because they have no cache salt.")
CONNECTIONS: Final = gauge("lmcache.connections", "{connection}", "Connections of engines that are open.")
CONNECTIONS_UNREAD: Final = counter(
    "lmcache.connections.unread",
    "{connection}",
    "Connections that were closed because they did not read their answers.",
)
HANDSHAKES: Final = counter(
    "lmcache.connections.handshakes",
    "{handshake}",
    "Connections that were accepted: ok, refused (no ZMTP 3), incomplete (closed by the peer, or silent, before the end), or "
    "forbidden (the peer's user may not connect).",
    "outcome",
)
WORKERS: Final = gauge(
    "lmcache.workers",
    "{worker}",
    "Registered workers, by model, by what decides their KV bytes (model_identity; empty: they do not say) and by how chunks "
    "travel: shared_memory or inline.",
    "model_name",
    "model_identity",
    "transport",
)
LOOKUPS_OPEN: Final = gauge("lmcache.lookup.open", "{lookup}", "Lookups whose request is not over.")
LOOKUPS_OLDEST: Final = gauge("lmcache.lookup.oldest_age", "s", "How long ago the oldest of these began.")
PROMPT_BYTES: Final = gauge("lmcache.prompts.usage", "By", "Memory of the prompts that are remembered.")
PROMPT_TENANTS: Final = gauge("lmcache.prompts.tenants", "{tenant}", "Cache salts of which prompts are remembered.")
THREAD_RESTARTS: Final = counter("lmcache.threads.restarts", "{restart}", "Times that a thread failed.", "thread")
THREADS_DOWN: Final = gauge("lmcache.threads.down", "{thread}", "Threads that failed and are not running again yet.")
POLICY_FAILURES: Final = counter(
    "lmcache.policy.failures", "{failure}", "Calls of a policy that raised, or returned an invalid value.", "policy"
)
CPU: Final = counter("process.cpu.time", "s", "Processor time of the server.", "cpu.mode")
MEMORY: Final = gauge("process.memory.usage", "By", "Resident memory, L1 included.")
FILES: Final = gauge("process.open_file_descriptor.count", "{file_descriptor}", "Open file descriptors.")
COLLECTIONS: Final = counter("cpython.gc.collections", "{collection}", "Garbage collections.", "cpython.gc.generation")

_SUBSCRIBER: Final = ("subscriber_name",)

EVENTS_WAITING: Final = gauge(
    "lmcache_mp.event_bus.queue_depth", "", "Events that wait for a subscriber.", "subscriber_name"
)
EVENTS_LAG: Final = gauge(
    "lmcache_mp.event_bus.drain_lag_seconds",
    "",
    "How long the oldest event that waits for a subscriber has waited.",
    "subscriber_name",
)
EVENTS_DROPPED: Final = counter(
    "lmcache_mp.event_bus.dropped_events_total",
    "1",
    "Events that a subscriber was not given, because it was too far behind or had ended.",
    *_SUBSCRIBER,
    "event",
)
EVENTS_FAILED: Final = counter(
    "lmcache_mp.event_bus.subscriber_exceptions", "1", "Times that a subscriber raised.", "subscriber_name"
)
EVENTS_DELIVERED: Final = counter(
    "lmcache.events.delivered", "{event}", "Events that a subscriber was given.", "subscriber_name"
)
EVENTS_CPU: Final = counter(
    "lmcache.events.cpu.time", "s", "Processor time of a subscriber's thread.", "subscriber_name"
)
EVENTS_STATE: Final = gauge(
    "lmcache.events.subscribers",
    "{subscriber}",
    "Subscribers by state: ok, behind, stuck, failing or ended.",
    *_SUBSCRIBER,
    "state",
)


KINDS: Final = kinds_in(globals())

_PROC: Final = Path("/proc/self")


def server_samples(server: ServerView, counts: ServerCounts) -> Iterator[Sample]:
    conditions = server.conditions()
    yield BUILD.of(1, server.info.version, sys.version.split()[0], "yes" if counts.native else "no")
    yield UPTIME.of(counts.uptime_seconds)
    yield HEALTHY.of(server_state(conditions) is ServerState.HEALTHY)
    for condition, _ in conditions:
        yield CONDITION.of(1, condition.name, condition.severity.value, condition.subject)
    yield from _port(counts.port)
    yield LOOKUPS_OPEN.of(counts.lookups_open)
    yield LOOKUPS_OLDEST.of(counts.oldest_lookup_seconds)
    yield PROMPT_BYTES.of(counts.prompt_bytes)
    yield PROMPT_TENANTS.of(counts.prompt_tenants)
    for name, restarts in counts.thread_restarts.items():
        yield THREAD_RESTARTS.of(restarts, name)
    yield THREADS_DOWN.of(counts.threads_down)
    for policy, failures in counts.policy_failures.items():
        yield POLICY_FAILURES.of(failures, policy)
    for name, status in counts.subscribers.items():
        yield from _subscriber(name, status)
    yield from _process()


def _port(counts: PortCounts) -> Iterator[Sample]:
    for (operation, outcome), times in counts.times.items():
        yield REQUESTS.of(sum(times.counts), operation, outcome)
        yield REQUEST_TIMES.histogram_of(times, operation, outcome)
    requests, connections = counts.requests, counts.connections
    yield REQUESTS_RECEIVED.of(requests.requests)
    yield REQUESTS_DROPPED.of(requests.dropped)
    yield ANSWERS_WAITING.of(requests.waiting_bytes)
    yield CONNECTIONS_UNREAD.of(requests.closed)
    for pool, waiting in counts.waiting.items():
        yield REQUESTS_WAITING.of(waiting, pool)
    yield REQUESTS_OLDEST.of(counts.oldest_seconds)
    yield UNSALTED.of(counts.unsalted)
    yield CONNECTIONS.of(connections.accepted - connections.closed)
    yield HANDSHAKES.of(connections.ok, "ok")
    yield HANDSHAKES.of(connections.refused, "refused")
    yield HANDSHAKES.of(connections.incomplete, "incomplete")
    yield HANDSHAKES.of(connections.forbidden, "forbidden")
    for (model_name, inline), count in counts.workers.items():
        model = parse_model_name(model_name)
        yield WORKERS.of(count, model.served, model.identity, "inline" if inline else "shared_memory")


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
