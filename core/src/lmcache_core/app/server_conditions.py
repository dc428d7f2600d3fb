"""The sources of a running server's conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core.app.parts import Parts
from lmcache_core.app.plugins.discovery import PluginRow
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, ReportsConditions, Severity
from lmcache_core.contracts.counts import SubscriberState
from lmcache_core.contracts.request_module import Worker
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_conditions import AdapterWatch, adapter_subject
from lmcache_core.controllers.conditions import PluginReports, RecentGrowth, Reporter, counts_of
from lmcache_core.model.keys import HashChain
from lmcache_core.model.names import parse_model_name
from lmcache_core.server.registrations import layout_of

PAGE_KEYS: Final = 64
PAGES_MAX: Final = 16
AGAIN_SECONDS: Final = 60.0
"""Between two looks where nothing fitted."""
_LOG_SAYS: Final = "the log says why"
_ENLARGE: Final = "enlarge the shared memory (docker: --shm-size, Kubernetes: an emptyDir of medium Memory)"
_SUBSCRIBERS_ILL: Final = {
    SubscriberState.ENDED: "it raised when it was opened, and is not used",
    SubscriberState.STUCK: "it has not come back from a call",
    SubscriberState.FAILING: "it raises",
}


def watch_server(parts: Parts) -> None:
    """Has the server's conditions ask all parts, and what plugins opened."""
    conditions, settings, clock = parts.common.conditions, parts.common.settings, parts.common.clock
    growth, adapters = RecentGrowth(clock), AdapterWatch(clock)
    reports = PluginReports(clock, lambda: _reporters(parts))
    conditions.add(parts.supervisor.conditions)
    conditions.add(parts.tiers.storage.freeze.conditions)
    conditions.add(lambda: _threads(parts, growth))
    conditions.add(lambda: _memory(parts))
    if settings.l1_shared_memory and parts.tiers.arena.kind == "anonymous_memory":
        conditions.add(_not_shared)
    conditions.add(lambda: _growing(parts, growth))
    conditions.add(lambda: model_conflicts(parts.engine_port.workers.registered()))
    conditions.add(lambda: _adapters(parts, adapters))
    conditions.add(lambda: (each for seat in parts.guarded_policies() for each in seat.conditions()))
    conditions.add(lambda: _plugins(parts.common.plugins.rows()))
    conditions.add(lambda: _subscribers(parts, growth))
    conditions.add(reports.conditions, reports.refresh)
    found = PluginReports(clock, _FoundIn(parts).reporters)
    conditions.add(found.conditions, found.refresh)


def _reporters(parts: Parts) -> Sequence[Reporter]:
    """Objects of plugins that have a `conditions` of their own."""
    found: list[Reporter] = []
    for adapter in parts.tiers.l2.adapters:
        if adapter.removal is None:
            _add(found, adapter_subject(adapter.name), adapter.client.adapter)
    for name, module in parts.engine_port.modules.items():
        _add(found, f"module {name}", module, Severity.CRITICAL)
    for seat in parts.guarded_policies():
        _add(found, seat.subject, seat.policy)
    for name, asked in parts.common.subscribers.items():
        _add(found, f"subscriber {name}", asked.subscriber)
    for name, service in parts.services.opened().items():
        _add(found, f"service {name}", service)
    return found


class _FoundIn:
    """What lies in each adapter, for as long as the adapter is there."""

    def __init__(self, parts: Parts) -> None:
        self._parts, settings = parts, parts.common.settings
        self._chunk_tokens, self._chain = settings.chunk_size, HashChain.named(settings.hash_algorithm)
        self._known: dict[AdapterClient, FoundObjects] = {}

    def reporters(self) -> Sequence[Reporter]:
        clients = [adapter.client for adapter in self._parts.tiers.l2.adapters if adapter.removal is None]
        self._known = {
            client: self._known.get(client)
            or FoundObjects(client, self._chunk_tokens, self._chain, self._parts.common.clock)
            for client in clients
        }
        return [Reporter(adapter_subject(client.name), each.conditions) for client, each in self._known.items()]


def _add(found: list[Reporter], subject: str, thing: Any, most: Severity = Severity.WARNING) -> None:
    reports: Callable[[], Any] | None = getattr(thing, "conditions", None)
    if reports is not None and getattr(reports, "__func__", None) is not ReportsConditions.conditions:
        found.append(Reporter(subject, reports, most))


def _threads(parts: Parts, growth: RecentGrowth) -> Iterator[Condition]:
    for name, thread in parts.supervisor.threads.items():
        recent = growth.of(("restarts", name), thread.restarts)
        if recent and not thread.down:
            yield Condition(
                "thread_restarted",
                Severity.INFO,
                f"it failed {recent:.0f} times in the last minute and was started again",
                f"{_LOG_SAYS}; report it",
                f"thread {name}",
                counts_of(restarts=recent),
            )


def _memory(parts: Parts) -> Iterator[Condition]:
    counts = parts.tiers.storage.state_counts()
    if not counts.is_balanced:
        yield Condition(
            "l1_slots_unaccounted",
            Severity.WARNING,
            "slots do not add up",
            "report it, with `lmcache status --format json`",
            "L1",
        )
    if parts.preallocation.is_full:
        yield Condition(
            "l1_memory_short",
            Severity.WARNING,
            f"the system has no more memory for it: {parts.tiers.arena.backed_bytes / 2**30:.2f} of "
            f"{parts.tiers.arena.size_bytes / 2**30:.2f} GiB are there",
            f"{_ENLARGE} or the memory limit, or lower --l1-size-gb",
            "L1",
        )
    if counts.quarantined:
        yield Condition(
            "l1_slots_quarantined",
            Severity.INFO,
            f"{counts.quarantined} slots are in quarantine, until their worker or adapter releases them",
            "they come back when the worker answers or ends, or some minutes after it registered again",
            "L1",
            counts_of(slots=counts.quarantined),
        )


def _not_shared() -> Iterator[Condition]:
    yield Condition(
        "l1_not_shared",
        Severity.WARNING,
        "it did not fit into the shared memory when the server started: engines get their chunks over the engine port, slowly",
        f"{_ENLARGE} or lower --l1-size-gb, and start the server again; --no-l1-shared-memory where it is meant to be so",
        "L1",
    )


class _GrowthCondition(NamedTuple):
    """A condition while a counter of the server grows."""

    name: str
    severity: Severity
    read: Callable[[Parts], float]
    reason: str
    """Of `{}` in the last minute."""
    remedy: str
    subject: str
    counted: str


_GROWING: Final = (
    _GrowthCondition(
        "requests_refused", Severity.INFO, lambda parts: parts.engine_port.requests.refused,
        "{} requests of engines were refused in the last minute", _LOG_SAYS, "engine port", "refused",
    ),
    _GrowthCondition(
        "requests_dropped", Severity.INFO, lambda parts: parts.engine_port.requests.dropped,
        "{} messages of the last minute could not be answered",
        "see whether something else than an engine connects to the engine port, or an engine does not read",
        "engine port", "dropped",
    ),
    _GrowthCondition(
        "engines_forbidden", Severity.WARNING, lambda parts: parts.engine_port.connections.forbidden,
        "{} connections of the last minute were refused, because their user may not use this server",
        "run the engine as the server's user, or name its user with --engine-users; the log says who it is",
        "engine port", "connections",
    ),
    _GrowthCondition(
        "engines_not_reading", Severity.WARNING, lambda parts: parts.engine_port.requests.closed,
        "{} connections of the last minute were closed, because they did not read their answers",
        "see whether an engine is frozen; --send-patience-seconds says how long it may be",
        "engine port", "connections",
    ),
    _GrowthCondition(
        "handshakes_refused", Severity.INFO, lambda parts: parts.engine_port.connections.refused,
        "{} connections of the last minute did not speak ZMTP 3",
        "a web page, a port scanner, or a client with ZeroMQ before 4.0 connects to the engine port",
        "engine port", "connections",
    ),
    _GrowthCondition(
        "stores_skipped", Severity.INFO, lambda parts: parts.tiers.store.backlog.refused,
        "{} objects of the last minute stay in L1 only, because too much waits for L2",
        "see `lmcache status` for the slowest adapter; --l2-store-max-backlog-gb says how much may wait",
        "store", "objects",
    ),
    _GrowthCondition(
        "loads_late", Severity.INFO, lambda parts: parts.tiers.prefetch.timed_out,
        "{} lookups of the last minute were answered before L2 had loaded everything",
        "--lookup-timeout-seconds says how long they may take", "prefetch", "lookups",
    ),
    _GrowthCondition(
        "l1_objects_overwritten", Severity.WARNING, lambda parts: getattr(parts.tiers.cache.checks, "overwritten", 0),
        "{} objects of the last minute had other bytes than were published, and were dropped",
        "find the process of the server's user that writes to L1's shared memory; run engines that are not trusted as users of "
        "their own, each with a server of its own",
        "L1", "objects",
    ),
)  # fmt: skip


def _growing(parts: Parts, growth: RecentGrowth) -> Iterator[Condition]:
    for each in _GROWING:
        if recent := growth.of(each.name, each.read(parts)):
            reason, counts = each.reason.format(int(recent)), counts_of(**{each.counted: recent})
            yield Condition(each.name, each.severity, reason, each.remedy, each.subject, counts)


def _adapters(parts: Parts, watch: AdapterWatch) -> Iterator[Condition]:
    for adapter in parts.tiers.l2.adapters:
        if adapter.removal is None:
            yield from watch.conditions(adapter.client)


def _plugins(rows: Sequence[PluginRow]) -> Iterator[Condition]:
    for row in rows:
        if row.unusable:
            yield Condition(
                "plugin_unusable",
                Severity.WARNING,
                f"{row.status.value}: {row.error or 'it cannot be used'}",
                row.remedy or "see `lmcache plugins list --verbose`",
                f"plugin {row.candidate.name}",
            )


def _subscribers(parts: Parts, growth: RecentGrowth) -> Iterator[Condition]:
    for name, status in parts.common.bus.counters().subscribers.items():
        subject = f"subscriber {name}"
        if words := _SUBSCRIBERS_ILL.get(status.state):
            yield Condition(
                "subscriber_fails",
                Severity.WARNING,
                words + (f": {status.last_error}" if status.last_error else ""),
                _LOG_SAYS,
                subject,
                counts_of(failed=status.failed, waiting=status.waiting),
            )
        if dropped := growth.of(("events", name), sum(status.dropped.values())):
            yield Condition(
                "events_dropped",
                Severity.INFO,
                f"{dropped:.0f} events of the last minute did not reach it, because it is too slow",
                "what it makes of events misses some; totals of metrics do not",
                subject,
                counts_of(events=dropped),
            )


class FoundObjects:
    """Does what lies in an L2 adapter fit to this server?  Objects of another chunk size or hash are never asked for.

    Looks at keys that an adapter lists until one fits, up to `PAGES_MAX` pages, and again later where none does.
    `conditions` may block as long as the adapter's listing; one thread at a time."""

    def __init__(self, client: AdapterClient, chunk_tokens: int, chain: HashChain, clock: Clock) -> None:
        self.client: Final = client
        self._chunk_tokens, self._chain, self._clock = chunk_tokens, chain, clock
        self._next_look = clock.monotonic()
        self._others: Counter[str] = Counter()
        self._is_all = False
        """There is nothing else in the adapter."""

    def conditions(self) -> Iterator[Condition]:
        now = self._clock.monotonic()
        if now >= self._next_look and not self.client.is_learning:
            self._look()
            self._next_look = now + AGAIN_SECONDS if self._others else float("inf")
        if self._others:
            found = ", ".join(f"{count} with {how}" for how, count in self._others.most_common(3))
            is_own = self._is_all and Capability.SHARED not in self.client.capabilities
            yield Condition(
                "objects_do_not_fit",
                Severity.WARNING if is_own else Severity.INFO,
                f"of {self._others.total()} objects that were looked at none is ever asked for: {found}; this server has "
                f"{_words(self._chunk_tokens, self._chain)}",
                "start the server with the --chunk-size and --hash-algorithm of what is stored, or delete that",
                counts=counts_of(objects=self._others.total()),
            )

    def _look(self) -> None:
        self._others = Counter()
        if Capability.LIST not in self.client.capabilities:
            return
        others: Counter[str] = Counter()
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = self.client.list_keys(cursor, PAGE_KEYS)
            if page is None:
                return
            kinds = Counter((key.space.chunk_tokens, key.space.chain) for key in page.keys)
            if any((self._chunk_tokens, chain) in kinds for chain in (self._chain, HashChain.EXTERNAL)):
                return
            others.update({_words(*kind): count for kind, count in kinds.items()})
            cursor = page.cursor
            if cursor is None:
                break
        self._others, self._is_all = others, cursor is None


def _words(chunk_tokens: int, chain: HashChain) -> str:
    return f"chunks of {chunk_tokens} tokens and hash {chain.name.lower()}"


def model_conflicts(workers: Iterable[Worker]) -> Iterator[Condition]:
    """A name with an identity is another one wherever bytes mean something else: only names without one can conflict."""
    by_name: dict[str, list[Worker]] = {}
    for worker in workers:
        if not parse_model_name(worker.model_name).identity:
            by_name.setdefault(worker.model_name, []).append(worker)
    for name, those in sorted(by_name.items()):
        if differences := list(_differences(those)):
            yield Condition(
                "model_conflict",
                Severity.WARNING,
                f"its engines differ: {'; '.join(differences)}; the server cannot tell whether they serve one model",
                "serve other models under other paths, or use LMCacheNodeConnector, which says what its bytes mean",
                f"model {name}",
                counts_of(workers=len(those)),
            )


def _differences(workers: list[Worker]) -> Iterator[str]:
    worlds = sorted({worker.world_size for worker in workers})
    if len(worlds) > 1:
        yield f"world sizes {', '.join(map(str, worlds))}"
    dtypes = sorted({" + ".join(sorted(_dtypes(worker))) for worker in workers})
    if len(dtypes) > 1:
        yield f"types {', '.join(dtypes)}"
        return
    shapes: dict[tuple[int, int], set[str]] = {}
    for worker in workers:
        shard = 0 if worker.world_size == 1 else worker.shard
        if shard is not None:  # stages of one engine may differ
            shapes.setdefault((worker.world_size, shard), set()).add(layout_of(worker))
    for (world, shard), those in sorted(shapes.items()):
        if len(those) > 1:
            yield f"chunks of shard {shard} of {world}: {', '.join(sorted(those))}"


def _dtypes(worker: Worker) -> set[str]:
    return {part.dtype for group in worker.groups for part in getattr(group.layout, "parts", (group.layout,))}
