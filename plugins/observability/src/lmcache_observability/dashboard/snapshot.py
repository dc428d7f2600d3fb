"""Everything that the dashboard shows, of one moment.  Its page reads this, and nothing else of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmcache_core import Sample, ServerView
from lmcache_observability.dashboard.recent_events import Happened
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.history import FIGURES, Moment
from lmcache_observability.tracing.slowest import SlowRequest

Shown = Mapping[str, Any]
_WINDOWS: Final = {"5m": "last 5 minutes", "1h": "last hour"}
_SLOW_STEPS_MAX: Final = 40
_CURVES: Final = {
    "actual": "recent_hit_ratio",
    "ceiling": "recent_hit_ratio_ceiling",
    "retrieved": "l1_read_bytes_per_second",
    "stored": "l1_written_bytes_per_second",
    "loaded": "l2_read_bytes_per_second",
    "lookups": "lookups_per_second",
}
_AT: Final = {curve: [figure.name for figure in FIGURES].index(name) for curve, name in _CURVES.items()}


def snapshot(
    server: ServerView,
    samples: Sequence[Sample],
    ceilings: Sequence[Ceiling],
    moments: Sequence[Moment],
    slow: Sequence[SlowRequest],
    happened: Sequence[Happened],
    missing: Sequence[str],
) -> Shown:
    """As JSON.  What the server does not say is None or left out of its list; `missing` names the subscribers that would have
    known."""
    status = server.status()
    figures = Figures(samples)
    chunks = status["chunks"]
    return {
        "server": {
            "instance_id": server.info.instance_id,
            "version": server.info.version,
            "engine_endpoint": server.info.engine_endpoint,
            "uptime_seconds": status["server"]["uptime_seconds"],
            "state": status["state"],
            "reason": status["reason"],
        },
        "conditions": list(status["conditions"]),
        "missing": list(missing),
        "hit_rate": _hit_rate(ceilings, moments),
        "served": {
            "l1": _share(chunks["hit_l1"], chunks["requested"]),
            "l2": _share(chunks["loaded_from_l2"], chunks["requested"]),
        },
        "traffic": {
            "lookups_per_second": moments[-1].figures[_AT["lookups"]] if moments else None,
            "slowest_seconds": slow[0].seconds if slow else None,
            "history": [_moment(moment, ("retrieved", "stored", "loaded")) for moment in moments],
        },
        "l1": _l1(status, chunks),
        "adapters": [_adapter(adapter, figures) for adapter in status["l2"]],
        "tenants": _tenants(status, ceilings),
        "slow_requests": [_slow(request) for request in slow],
        "events": [each._asdict() for each in happened],
        "plugins": [{**plugin, "error": plugin["error"] or ""} for plugin in status["plugins"]],
        "subscribers": [
            {**lane, "name": name, "dropped": sum(lane["dropped"].values())}
            for name, lane in status["events"]["subscribers"].items()
        ],
        # as text: browsers' numbers have 53 bits
        "workers": [{**worker, "instance_id": str(worker["instance_id"])} for worker in status["workers"]],
        "threads": [
            {
                "name": name,
                "state": "running" if thread["running"] else "down" if thread["last_error"] else "done",
                "restarts": thread["restarts"],
                "last_error": thread["last_error"],
            }
            for name, thread in status["threads"].items()
        ],
    }


class Figures:
    """Samples, added up by the labels that are asked for."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def of(self, name: str, *labels: str) -> float | None:
        """The sum of those values that carry all of `labels`; None where there is none."""
        found = [each.value for each in self._by_name.get(name, ()) if Counter(labels) <= Counter(each.labels)]
        return sum(found) if found else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _hit_rate(ceilings: Sequence[Ceiling], moments: Sequence[Moment]) -> Shown:
    """Of the shortest window in which anything was asked for."""
    overall = {each.window: each for each in ceilings if each.cache_salt == ALL}
    window = next((window for window in _WINDOWS if window in overall), None)
    now = overall[window] if window else None
    return {
        "window": _WINDOWS[window] if window else "no lookups yet",
        "actual": now.actual if now else None,
        "ceiling": now.ceiling if now else None,
        "history": [_moment(moment, ("actual", "ceiling")) for moment in moments],
    }


def _moment(moment: Moment, curves: Sequence[str]) -> Shown:
    values = {curve: moment.figures[_AT[curve]] for curve in curves}
    return {"at": moment.at, **{curve: None if value is None else round(value, 4) for curve, value in values.items()}}


def _l1(status: Shown, chunks: Shown) -> Shown:
    l1 = status["l1"]
    return {
        "capacity_bytes": l1["capacity_bytes"],
        "used_bytes": l1["used_bytes"],
        "slots": {state: l1[state] for state in ("cached", "held", "quarantined")},
        "evicted": l1["evicted"],
        "refused": chunks["refused"],
        "policy": status["policies"]["eviction"],
    }


def _adapter(adapter: Shown, figures: Figures) -> Shown:
    name = adapter["name"]
    return {
        "name": name,
        "type": adapter["type"],
        "state": adapter["state"] if adapter["healthy"] else "degraded",
        "circuit": (adapter["circuit"] or {}).get("state"),
        "used_bytes": figures.of("lmcache_mp.l2_usage_bytes", name),
        "capacity_bytes": figures.of("lmcache.l2.capacity", name),
        "queue_objects": figures.of("lmcache.l2.store.pending", name, "waiting"),
        "queue_bytes": figures.of("lmcache.l2.store.pending.size", name, "waiting"),
        "oldest_seconds": figures.of("lmcache.l2.store.oldest_age", name),
        "in_flight": adapter["jobs_in_flight"],
        "stored": figures.of("lmcache.l2.store.ended", name, "stored"),
        "loaded": figures.of("lmcache_mp.l2_prefetch_load_completed", name),
        "failed": figures.of("lmcache.l2.store.ended", name, "failed") or 0,
        "dropped": figures.of("lmcache.l2.store.ended", name, "dropped") or 0,
    }


def _tenants(status: Shown, ceilings: Sequence[Ceiling]) -> list[Shown]:
    """Those that asked for most, and those that use most."""
    use = {each["cache_salt"]: each for each in status["quotas"]["largest"]}
    tenants = {each["cache_salt"]: each for each in status["tenants"]}
    rates = {each.cache_salt: each for each in ceilings if each.window == "start"}
    # metrics call the empty salt by no name, `/status` by a word
    rates |= {"_default": rates[""]} if "" in rates else {}
    return [
        {
            "salt": salt,
            "lookups": tenant.get("lookups", 0),
            # of the same chunks as the ceiling, where that is known
            "hit_rate": rates[salt].actual if salt in rates else tenant.get("hit_rate"),
            "ceiling": rates[salt].ceiling if salt in rates else None,
            "hit_l1_tokens": tenant.get("hit_l1_tokens", 0),
            "hit_l2_tokens": tenant.get("hit_l2_tokens", 0),
            "used_bytes": use.get(salt, {}).get("used_bytes", 0),
            "limit_bytes": use.get(salt, {}).get("limit_bytes"),
        }
        for salt, tenant in ((salt, tenants.get(salt, {})) for salt in dict.fromkeys((*tenants, *use)))
    ]


def _slow(request: SlowRequest) -> Shown:
    steps = sorted(request.steps, key=lambda step: step.begin)[:_SLOW_STEPS_MAX]
    begin = min((step.begin for step in steps), default=request.ended)
    attributes = next((step.attributes for step in steps if "lmcache.requested_chunks" in step.attributes), {})
    return {
        "request_id": request.request_id,
        "trace_id": f"{request.trace_id:032x}",
        "at": request.ended,
        "seconds": request.seconds,
        "model": request.model_name,
        "requested_chunks": attributes.get("lmcache.requested_chunks"),
        "hit_chunks": attributes.get("lmcache.hit_chunks"),
        "span_seconds": max((step.end for step in steps), default=begin) - begin,
        "spans": [
            {
                "name": _step_name(step.name, step.attributes),
                "offset_seconds": step.begin - begin,
                "seconds": step.end - step.begin,
                "fault": step.fault,
            }
            for step in steps
        ],
    }


def _step_name(name: str, attributes: Mapping[str, Any]) -> str:
    adapter = attributes.get("db.namespace")
    return f"{name.removeprefix('lmcache.')}{f' ({adapter})' if adapter else ''}"
