"""Readings of the server itself: requests, workers, events, threads and the process."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.conditions import ActiveCondition, ServerState
from lmcache_core.contracts.readings import Reading, ReadingKind
from lmcache_core.controllers.conditions import server_state
from lmcache_core.jobs.durations import BOUNDS_SECONDS
from lmcache_core.model.model_name import parse_model_name

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

BUILD: Final = ReadingKind(
    "lmcache.build.info",
    "1",
    "1, with the server's version and the kernels it runs on.",
    counts=False,
    labels=("version", "python", "native"),
)
UPTIME: Final = ReadingKind("lmcache.uptime", "s", "Seconds since the server was started.", counts=False)
HEALTHY: Final = ReadingKind(
    "lmcache.healthy", "1", "1: the health check says healthy; 0: degraded or unhealthy.", counts=False
)
CONDITION: Final = ReadingKind(
    "lmcache.condition",
    "1",
    "1 while a condition lasts: something that is not as it should be.",
    counts=False,
    labels=("name", "severity", "subject"),
)
REQUESTS: Final = ReadingKind(
    "lmcache.requests",
    "{request}",
    "Messages of engines that were answered: ok, error (a fault of the server) or refused.",
    counts=True,
    labels=("operation", "outcome"),
)
REQUEST_TIMES: Final = ReadingKind(
    "lmcache.request.duration",
    "s",
    "From the arrival of a message of an engine to its answer.",
    counts=True,
    labels=("operation", "outcome"),
    bounds=BOUNDS_SECONDS,
)
REQUESTS_RECEIVED: Final = ReadingKind(
    "lmcache.requests.received", "{request}", "Messages of engines with a readable envelope.", counts=True
)
REQUESTS_DROPPED: Final = ReadingKind(
    "lmcache.requests.dropped",
    "{request}",
    "Not answered at all: no readable envelope, or the connection is closed.",
    counts=True,
)
ANSWERS_WAITING: Final = ReadingKind(
    "lmcache.answers.waiting", "By", "Answers that wait because their connection reads slowly.", counts=False
)
REQUESTS_WAITING: Final = ReadingKind(
    "lmcache.requests.waiting", "{request}", "Messages that wait for a thread.", counts=False, labels=("pool",)
)
REQUESTS_OLDEST: Final = ReadingKind(
    "lmcache.requests.oldest_age",
    "s",
    "How long the oldest message has been with a thread of a pool, or waited for it.",
    counts=False,
)
UNSALTED: Final = ReadingKind(
    "lmcache.requests.unsalted", "{request}", "Messages refused because they have no cache salt.", counts=True
)
CONNECTIONS: Final = ReadingKind(
    "lmcache.connections", "{connection}", "Connections of engines that are open.", counts=False
)
CONNECTIONS_UNREAD: Final = ReadingKind(
    "lmcache.connections.unread",
    "{connection}",
    "Connections that were closed because they did not read their answers.",
    counts=True,
)
HANDSHAKES: Final = ReadingKind(
    "lmcache.connections.handshakes",
    "{handshake}",
    "Connections that were accepted: ok, refused (no ZMTP 3), incomplete (closed by the peer, or silent, before the end), or "
    "forbidden (the peer's user may not connect).",
    counts=True,
    labels=("outcome",),
)
WORKERS: Final = ReadingKind(
    "lmcache.workers",
    "{worker}",
    "Registered workers, by model, by what decides their KV bytes (model_identity; empty: they do not say) and by how chunks "
    "travel: shared_memory or inline.",
    counts=False,
    labels=("model_name", "model_identity", "transport"),
)
LOOKUPS_OPEN: Final = ReadingKind("lmcache.lookup.open", "{lookup}", "Lookups whose request is not over.", counts=False)
LOOKUPS_OLDEST: Final = ReadingKind(
    "lmcache.lookup.oldest_age", "s", "How long ago the oldest of these began.", counts=False
)
PROMPT_BYTES: Final = ReadingKind(
    "lmcache.prompts.usage", "By", "Memory of the prompts that are remembered.", counts=False
)
PROMPT_TENANTS: Final = ReadingKind(
    "lmcache.prompts.tenants", "{tenant}", "Cache salts of which prompts are remembered.", counts=False
)
THREAD_RESTARTS: Final = ReadingKind(
    "lmcache.threads.restarts", "{restart}", "Times that a thread failed.", counts=True, labels=("thread",)
)
THREADS_DOWN: Final = ReadingKind(
    "lmcache.threads.down", "{thread}", "Threads that failed and are not running again yet.", counts=False
)
POLICY_FAILURES: Final = ReadingKind(
    "lmcache.policy.failures",
    "{failure}",
    "Calls of a policy that raised, or returned what makes no sense.",
    counts=True,
    labels=("policy",),
)
CPU: Final = ReadingKind("process.cpu.time", "s", "Processor time of the server.", counts=True, labels=("cpu.mode",))
MEMORY: Final = ReadingKind("process.memory.usage", "By", "Resident memory, L1 included.", counts=False)
FILES: Final = ReadingKind(
    "process.open_file_descriptor.count", "{file_descriptor}", "Open file descriptors.", counts=False
)
COLLECTIONS: Final = ReadingKind(
    "cpython.gc.collections",
    "{collection}",
    "Garbage collections.",
    counts=True,
    labels=("cpython.gc.generation",),
)

KINDS: Final = (
    BUILD,
    UPTIME,
    HEALTHY,
    CONDITION,
    REQUESTS,
    REQUEST_TIMES,
    REQUESTS_RECEIVED,
    REQUESTS_DROPPED,
    ANSWERS_WAITING,
    REQUESTS_WAITING,
    REQUESTS_OLDEST,
    UNSALTED,
    CONNECTIONS,
    CONNECTIONS_UNREAD,
    HANDSHAKES,
    WORKERS,
    LOOKUPS_OPEN,
    LOOKUPS_OLDEST,
    PROMPT_BYTES,
    PROMPT_TENANTS,
    THREAD_RESTARTS,
    THREADS_DOWN,
    POLICY_FAILURES,
    CPU,
    MEMORY,
    FILES,
    COLLECTIONS,
)

_PROC: Final = Path("/proc/self")


def server_readings(parts: Parts, uptime_seconds: float, conditions: Sequence[ActiveCondition]) -> Iterator[Reading]:
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
    for seat, _ in parts.policy_seats():
        yield POLICY_FAILURES.of(seat.failures, seat.subject.removesuffix(" policy"))
    yield from _process()


def _requests(parts: Parts) -> Iterator[Reading]:
    answered = parts.engine_port.router.answered()
    counters = parts.engine_port.router.counters  # later, so that no more are answered than were received
    for (operation, outcome), spread in answered.items():
        yield REQUESTS.of(sum(spread.counts), operation, outcome)
        yield REQUEST_TIMES.spread_of(spread, operation, outcome)
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


def _process() -> Iterator[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield CPU.of(usage.ru_utime, "user")
    yield CPU.of(usage.ru_stime, "system")
    pages = int((_PROC / "statm").read_text().split()[1])
    yield MEMORY.of(pages * resource.getpagesize())
    yield FILES.of(len(os.listdir(_PROC / "fd")))
    for generation, stats in enumerate(gc.get_stats()):
        yield COLLECTIONS.of(stats["collections"], str(generation))
