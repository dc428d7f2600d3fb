"""Writes deploy/grafana/lmcache.json: python -m scripts.grafana_dashboard > deploy/grafana/lmcache.json"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

RATE: Final = "$__rate_interval"
HERE: Final = 'instance=~"$instance"'
_WIDTH: Final = 24
_HEIGHT: Final = 8


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    """One of Grafana's: percentunit, bytes, Bps, s, short, ops."""
    about: str
    queries: Sequence[Query]
    stacked: bool = False


def _rate(metric: str, by: str, where: str = "") -> str:
    selector = ", ".join(filter(None, (HERE, where)))
    return f"sum by ({by}) (rate({metric}{{{selector}}}[{RATE}]))"


def _quantile(share: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', labels)})"


def _quantiles(histogram: str) -> list[Query]:
    return [Query(_quantile(share, histogram), f"p{int(share * 100)}") for share in (0.5, 0.9, 0.99)]


ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Hits",
        (
            Panel(
                "Hit rate against the ceiling",
                "percentunit",
                "The ceiling is what a cache that forgets nothing would have hit in the same window.",
                (
                    Query(f'lmcache_hit_rate_actual{{{HERE}, window="5m", cache_salt="_all"}}', "hit rate"),
                    Query(f'lmcache_hit_rate_ceiling{{{HERE}, window="5m", cache_salt="_all"}}', "ceiling"),
                ),
            ),
            Panel(
                "Chunks looked up, by where they were",
                "ops",
                "Chunks per second: found in L1, loaded from L2, or missed.",
                (Query(_rate("lmcache_lookup_chunks_total", "result"), "{{result}}"),),
                stacked=True,
            ),
            Panel(
                "Hit rate by tenant",
                "percentunit",
                "Tokens hit of tokens requested, by cache salt.",
                (
                    Query(
                        f"{_rate('lmcache_mp_lookup_hit_tokens_total', 'cache_salt')}"
                        f" / {_rate('lmcache_mp_lookup_requested_tokens_total', 'cache_salt')}",
                        "{{cache_salt}}",
                    ),
                ),
            ),
            Panel("Lookup time", "s", "From a lookup to its answer.", _quantiles("lmcache_lookup_duration_seconds")),
        ),
    ),
    (
        "L1",
        (
            Panel(
                "L1 use",
                "bytes",
                "Bytes of slots that are not free, beside the size of L1.",
                (
                    Query(f"sum(lmcache_mp_l1_memory_usage_bytes{{{HERE}}})", "used"),
                    Query(f"sum(lmcache_l1_capacity_bytes{{{HERE}}})", "capacity"),
                ),
            ),
            Panel(
                "Slots by state",
                "short",
                "Quarantined slots wait for a worker that fell silent.",
                (Query(f"sum by (state) (lmcache_l1_slots{{{HERE}}})", "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Bytes moved by engines",
                "Bps",
                "Stored into L1 (write) and read from it.",
                (Query(_rate("lmcache_l1_io_bytes_total", "direction"), "{{direction}}"),),
            ),
            Panel(
                "Evicted and refused",
                "ops",
                "Chunks per second that left to make room, and that were not taken.",
                (
                    Query(_rate("lmcache_mp_l1_evicted_chunks_total", "reason"), "left: {{reason}}"),
                    Query(_rate("lmcache_mp_l1_allocation_failure_chunks_total", "reason"), "refused: {{reason}}"),
                ),
            ),
            Panel(
                "Overwritten objects",
                "ops",
                "With --l1-verify-reads: objects per second that another process wrote over. They are not served.",
                (Query(_rate("lmcache_l1_overwritten_total", "instance"), "{{instance}}"),),
            ),
            Panel(
                "L1 by tenant",
                "bytes",
                "What each cache salt uses.",
                (Query(f"sum by (cache_salt) (lmcache_l1_salt_usage_bytes{{{HERE}}})", "{{cache_salt}}"),),
                stacked=True,
            ),
            Panel(
                "Idle before eviction",
                "s",
                "How long chunks had not been used when they left. Short: L1 is small for what is asked.",
                _quantiles("lmcache_mp_l1_chunk_idle_before_evict_seconds"),
            ),
        ),
    ),
    (
        "L2",
        (
            Panel(
                "Bytes moved by adapters",
                "Bps",
                "Objects stored (write) and loaded (read).",
                (Query(_rate("lmcache_l2_io_bytes_total", "l2_name, direction"), "{{l2_name}} {{direction}}"),),
            ),
            Panel(
                "Waiting to be stored",
                "bytes",
                "Bytes that wait for an adapter or are with it.",
                (Query(f"sum by (l2_name) (lmcache_l2_store_pending_size_bytes{{{HERE}}})", "{{l2_name}}"),),
            ),
            Panel(
                "Age of the oldest that waits",
                "s",
                "Beyond --l2-store-max-backlog-seconds, stores are dropped.",
                (Query(f"max by (l2_name) (lmcache_l2_store_oldest_age_seconds{{{HERE}}})", "{{l2_name}}"),),
            ),
            Panel(
                "Stores that did not arrive",
                "ops",
                "Objects per second that failed or were dropped.",
                (
                    Query(
                        _rate("lmcache_l2_store_ended_total", "l2_name, result, reason", 'result!="stored"'),
                        "{{l2_name}} {{result}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Load time, p99",
                "s",
                "Of one batch, by adapter.",
                (Query(_quantile(0.99, "lmcache_l2_load_duration_seconds", "l2_name"), "{{l2_name}}"),),
            ),
            Panel(
                "Health",
                "short",
                "1: the adapter answers.",
                (Query(f"min by (l2_name) (lmcache_l2_healthy{{{HERE}}})", "{{l2_name}}"),),
            ),
        ),
    ),
    (
        "Server",
        (
            Panel(
                "Requests of engines",
                "ops",
                "Messages answered per second.",
                (Query(_rate("lmcache_requests_total", "operation"), "{{operation}}"),),
            ),
            Panel(
                "Processor",
                "short",
                "Cores in use.",
                (Query(_rate("process_cpu_time_seconds_total", "instance"), "{{instance}}"),),
            ),
            Panel(
                "Workers",
                "short",
                "Registered engine workers by model.",
                (
                    Query(
                        f"sum by (model_name, model_identity) (lmcache_workers{{{HERE}}})",
                        "{{model_name}} {{model_identity}}",
                    ),
                ),
            ),
            Panel(
                "Events dropped, threads restarted",
                "ops",
                "Both should be zero.",
                (
                    Query(_rate("lmcache_mp_event_bus_dropped_events_total", "event"), "dropped {{event}}"),
                    Query(_rate("lmcache_threads_restarts_total", "thread"), "restarted {{thread}}"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """In Grafana's own format, schema 39."""
    return {
        "uid": "lmcache",
        "title": "KV cache",
        "tags": ["lmcache"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Server",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "query": "label_values(lmcache_build_info, instance)",
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS:
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _WIDTH, 1)}
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            x = index % 2 * (_WIDTH // 2)
            yield _panel(number, panel, _place(x, y + index // 2 * _HEIGHT, _WIDTH // 2, _HEIGHT))
        y += -(-len(panels) // 2) * _HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    custom: dict[str, Any] = {"lineWidth": 2, "fillOpacity": 25 if panel.stacked else 8, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
