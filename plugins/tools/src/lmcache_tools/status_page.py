"""`/status` on one screen: health, contents by tenant, work done, and open conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from lmcache_tools.loose_json import Loose
from lmcache_tools.page import Bar, Block, Cell, Line, Mood, Table
from lmcache_tools.quantities import count_text, ratio_text, seconds_text, size_text

TENANTS_MAX: Final = 8
_NONE: Final = Line("-", Mood.QUIET)


class Sample(NamedTuple):
    """What a server said, and when (`time.monotonic`)."""

    status: Mapping[str, Any]
    at: float


def status_page(now: Sample, before: Sample | None = None) -> list[Block]:
    """With a sample from before, rates are of the time between the two; without, there are none."""
    status = Loose(now.status)
    blocks = [*_head(status), *_l1(status), *_traffic(now, before)]
    for section in (_tenants(status), _workers(status), _adapters(status)):
        blocks += section
    return [*blocks, *condition_blocks(status)]


def _head(status: Loose) -> Iterator[Block]:
    server = status / "server"
    said = (status / "healthy").value
    state = (status / "state").text() or ("healthy" if said is True else "unhealthy" if said is False else "")
    if state == "healthy":
        yield Line("healthy", Mood.GOOD)
    else:
        reason = (status / "reason").text() or "it does not say why"
        yield Line(f"{state.upper()}: {reason}" if state else "health unknown", Mood.BAD)
    words = [
        f"lmcache {(server / 'version').text()}".strip(),
        f"up {seconds_text((server / 'uptime_seconds').count())}",
        f"instance {(server / 'instance_id').text() or '-'}",
        f"engines {(server / 'engine_endpoint').text() or '-'}",
    ]
    yield Line("  ".join(words), Mood.QUIET)


def _l1(status: Loose) -> Iterator[Block]:
    l1 = status / "l1"
    capacity, used = (l1 / "capacity_bytes").count(), (l1 / "used_bytes").count()
    slots = {name: (l1 / name).count() for name in ("cached", "held", "quarantined", "free")}
    taken = slots["cached"] + slots["held"] + slots["quarantined"]
    parts = [(name, used * slots[name] / taken if taken else 0.0) for name in ("cached", "held", "quarantined")]
    yield Line()
    shown = f"{ratio_text(used, capacity)} of {size_text(capacity)}: {size_text(used)} used"
    yield Bar("L1", parts, capacity, shown)
    words = [f"{count_text(count)} {name}" for name, count in slots.items() if count] or ["none yet"]
    file = (l1 / "file").text()
    words.append(f"in {file}" if file else f"{size_text((l1 / 'backed_bytes').count())} backed by memory")
    words.append(f"{count_text((l1 / 'evicted').count())} evicted so far")
    yield Line(f"slots: {', '.join(words)}")


def _traffic(now: Sample, before: Sample | None) -> Iterator[Block]:
    status, earlier = Loose(now.status), Loose(before.status if before else None)
    seconds = now.at - before.at if before else 0.0
    rows: list[list[Cell]] = []
    for name, path in _FLOWS:
        value, was = _at(status, path), _at(earlier, path)
        if value is None:
            continue
        row: list[Cell] = [name, count_text(value)]
        if seconds > 0:
            row.append(_NONE if was is None or value < was else f"{(value - was) / seconds:,.1f}")
        rows.append(row)
    head = ["SINCE THE START", "COUNT", *(["PER SECOND"] if seconds > 0 else [])]
    if rows:
        yield Line()
        yield Table(head, rows)
    chunks = status / "chunks"
    if (chunks / "requested").known:
        requested, hit = (chunks / "requested").count(), (chunks / "hit").count()
        from_l2 = (chunks / "loaded_from_l2").count()
        if not requested:
            yield Line("no lookup has asked for a chunk yet", Mood.QUIET)
            return
        rate = ratio_text(hit, requested)
        recent = _recent_rate(chunks, earlier / "chunks") if before else ""
        yield Line(f"{rate} of the chunks asked for were hit{recent}, {ratio_text(from_l2, requested)} by way of L2")


def _recent_rate(chunks: Loose, before: Loose) -> str:
    requested = (chunks / "requested").count() - (before / "requested").count()
    hit = (chunks / "hit").count() - (before / "hit").count()
    return f" ({ratio_text(hit, requested)} lately)" if requested > 0 else " (no lookups lately)"


_FLOWS: Final = (
    ("requests of engines", ("requests", "requests")),
    ("lookups", ("chunks", "lookups")),
    ("chunks asked for", ("chunks", "requested")),
    ("chunks hit", ("chunks", "hit")),
    ("objects stored", ("chunks", "stored")),
    ("objects read", ("chunks", "retrieved")),
    ("objects loaded from L2", ("prefetch", "loaded")),
)


def _at(value: Loose, path: tuple[str, ...]) -> float | None:
    for name in path:
        value = value / name
    return value.number()


def _tenants(status: Loose) -> Iterator[Block]:
    largest = {(each / "cache_salt").text(): each for each in status / "quotas" / "largest"}
    tenants = {(each / "cache_salt").text(): each for each in status / "tenants"}
    salts = sorted(
        largest.keys() | tenants.keys(), key=lambda salt: (-_use(largest, salt), -_asked(tenants, salt), salt)
    )
    rows = []
    for salt in salts[:TENANTS_MAX]:
        use, tenant = largest.get(salt, Loose(None)), tenants.get(salt, Loose(None))
        limit, used = (use / "limit_bytes").number(), (use / "used_bytes").number()
        rate = (tenant / "hit_rate").number()
        rows.append(
            (
                salt,
                _NONE if used is None else size_text(used),
                _NONE if limit is None else size_text(limit),
                _NONE if limit is None else ratio_text(used, limit),
                _NONE if not tenant.known else count_text((tenant / "lookups").count()),
                _NONE if not tenant.known else count_text((tenant / "requested_tokens").count()),
                _NONE if rate is None else ratio_text(rate, 1),
            )
        )
    if rows:
        yield Line()
        yield Table(("CACHE SALT", "L1", "QUOTA", "OF IT", "LOOKUPS", "TOKENS ASKED FOR", "OF THEM HIT"), rows)
        if len(salts) > TENANTS_MAX:
            yield Line(f"and {len(salts) - TENANTS_MAX} more: lmcache quota list", Mood.QUIET)


def _use(largest: Mapping[str, Loose], salt: str) -> float:
    return (largest[salt] / "used_bytes").count() if salt in largest else 0.0


def _asked(tenants: Mapping[str, Loose], salt: str) -> float:
    return (tenants[salt] / "requested_tokens").count() if salt in tenants else 0.0


def _workers(status: Loose) -> Iterator[Block]:
    models: dict[tuple[str, str], list[Loose]] = {}
    for worker in status / "workers":
        models.setdefault(((worker / "model_name").text(), (worker / "identity").text()), []).append(worker)
    rows = []
    for (model, identity), workers in sorted(models.items()):
        silent = max((worker / "silent_seconds").count() for worker in workers)
        transports = sorted({(worker / "transport").text() for worker in workers})
        rows.append((model, identity or _NONE, str(len(workers)), ", ".join(transports), f"{silent:.0f} s"))
    yield Line()
    if rows:
        yield Table(("MODEL", "IDENTITY", "WORKERS", "BYTES TRAVEL BY", "LONGEST SILENCE"), rows)
    else:
        yield Line("no worker of an engine is registered", Mood.QUIET)


def _adapters(status: Loose) -> Iterator[Block]:
    rows = []
    for adapter in status / "l2":
        name, usage = (adapter / "name").text(), adapter / "usage"
        queue = status / "store" / "adapters" / name
        capacity = (usage / "capacity_bytes").number()
        used = size_text((usage / "used_bytes").count()) if usage.known else "-"
        speed = (queue / "bytes_per_second").number()
        waiting = (queue / "waiting").count() + (queue / "in_flight").count()
        rows.append(
            (
                name,
                _state(adapter, status / "conditions"),
                used + (f" of {size_text(capacity)}" if capacity else ""),
                f"{count_text(waiting)} ({size_text((queue / 'backlog_bytes').count())})",
                count_text((queue / "stored").count()),
                count_text((adapter / "loaded").count()) if (adapter / "loaded").known else _NONE,
                _bad_count((queue / "failed").count()),
                _bad_count((queue / "dropped").count()),
                _NONE if speed is None else f"{size_text(speed)}/s",
            )
        )
    yield Line()
    if rows:
        head = ("L2 ADAPTER", "STATE", "HOLDS", "QUEUE", "STORED", "LOADED", "FAILED", "DROPPED", "SPEED")
        yield Table(head, rows)
    else:
        yield Line("no L2 adapter: what leaves L1 is gone", Mood.QUIET)


def _state(adapter: Loose, conditions: Loose) -> Line:
    subject = f"adapter {(adapter / 'name').text()}"
    for each in conditions:
        about = (each / "subject").text()
        is_about_it = about == subject or about.startswith(f"{subject}, ")
        if is_about_it and (each / "severity").text() != "info":
            return Line((each / "name").text(), Mood.BAD)
    if (adapter / "healthy").value is False:
        return Line("not well", Mood.BAD)
    state = (adapter / "state").text()
    if state not in ("", "serving"):
        return Line(state, Mood.DOUBTFUL)
    return Line("ok", Mood.GOOD)


def _bad_count(count: float) -> Line:
    return Line(count_text(count), Mood.DOUBTFUL if count else Mood.PLAIN)


_MOODS: Final = {"info": Mood.PLAIN, "warning": Mood.DOUBTFUL, "critical": Mood.BAD}


def condition_blocks(status: Loose) -> Iterator[Block]:
    """Everything that is not as it should be, the severest first, with what to do about it."""
    yield Line()
    rows = list(status / "conditions")
    if not rows:
        yield Line("no conditions: nothing is known to be wrong", Mood.QUIET)
        return
    yield Line("conditions:", Mood.HEADING)
    for row in rows:
        severity = (row / "severity").text()
        about = ": ".join(filter(None, ((row / "subject").text(), (row / "reason").text())))
        yield Line(
            f"  {severity} {(row / 'name').text()} since {_time(row / 'since')}", _MOODS.get(severity, Mood.DOUBTFUL)
        )
        yield Line(f"    {about}")
        if remedy := (row / "remedy").text():
            yield Line(f"    {remedy}", Mood.QUIET)


def _time(since: Loose) -> str:
    try:
        return datetime.fromtimestamp(since.count()).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # no time that there is
        return "-"
