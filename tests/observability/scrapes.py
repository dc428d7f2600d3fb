"""Scrapes of a server's metrics, and the equations that hold in each of them."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Self

from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
CHUNK_TOKENS: Final = 16
"""Of servers that are scraped here."""
_SAMPLE: Final = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)(?: # .*)?')
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """One answer to `GET /metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[str, dict[Labels, float]] = defaultdict(dict)
        self.counters: set[str] = set()
        for line in text.splitlines():
            if line.startswith("#"):
                self._note(line)
                continue
            found = _SAMPLE.fullmatch(line)
            assert found, f"no sample: {line}"
            labels = tuple(_LABEL.findall(found[2] or ""))
            assert labels not in self.values[found[1]], f"twice: {line}"
            self.values[found[1]][labels] = float(found[3])

    def families(self) -> set[str]:
        """Names of the metrics, as another parser of OpenMetrics finds them."""
        return {family.name for family in text_string_to_metric_families(self.text)}  # type: ignore[no-untyped-call]

    def by(self, name: str, *keys: str, **only: str) -> Mapping[tuple[str, ...], float]:
        """Sums of a measure, by the values of some of its labels."""
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for labels, value in self.values.get(name, {}).items():
            given = dict(labels)
            if all(given[key] == wanted for key, wanted in only.items()):
                sums[tuple(given[key] for key in keys)] += value
        return dict(sums)

    def sum(self, name: str, **only: str) -> float:
        return sum(self.by(name, **only).values())

    def _note(self, line: str) -> None:
        words = line.split(" ")
        if words[1] == "TYPE" and words[3] == "counter":
            self.counters.add(f"{words[2]}_total")
        if words[1] == "TYPE" and words[3] == "histogram":
            self.counters.update(f"{words[2]}_{each}" for each in ("bucket", "sum", "count"))


def scrape(port: int) -> Scrape:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": OPEN_METRICS})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return Scrape(answer.read().decode())


class Watch:
    """Scrapes one server all the time, on a thread of its own, and keeps what was wrong."""

    def __init__(self, port: int, check: Callable[[Scrape], None], resets: Callable[[Labels], bool]) -> None:
        self._port = port
        self._check = check
        self._resets = resets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._before: Scrape | None = None
        self.scrapes = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self, now: Scrape) -> None:
        self.scrapes += 1
        try:
            self._check(now)
            check_growth(self._before, now, self._resets)
        except AssertionError as error:
            self.wrong.append(str(error)[:500])
        self._before = now

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.take(scrape(self._port))
            except (AssertionError, urllib.error.URLError) as error:
                self.wrong.append(f"no scrape: {error}"[:500])
            time.sleep(0.01)


def check_growth(before: Scrape | None, now: Scrape, resets: Callable[[Labels], bool]) -> None:
    """Counters never go down, and none is gone; but for those that begin again."""
    if before is None:
        return
    for name in before.counters:
        for labels, value in before.values.get(name, {}).items():
            if not resets(labels):
                assert now.values[name].get(labels, -1.0) >= value, f"{name} {labels}: less than {value}"


def check_sums(found: Scrape) -> None:
    """What must add up, whatever happens meanwhile."""
    tenant = ("model_name", "cache_salt")
    requested = found.by("lmcache_mp_lookup_requested_tokens_total", *tenant)
    hit = found.by("lmcache_mp_lookup_hit_tokens_total", *tenant)
    tiers = [found.by(f"lmcache_mp_lookup_hit_{tier}_tokens_total", *tenant) for tier in ("l1", "l2")]
    missed = found.by("lmcache_lookup_missed_total", *tenant)
    parts = {
        result: found.by("lmcache_lookup_chunks_total", *tenant, result=result) for result in ("l1", "l2", "missed")
    }
    for whose, tokens in requested.items():
        assert tokens == tiers[0][whose] + tiers[1][whose] + missed[whose] == hit[whose] + missed[whose], whose
        assert min(tiers[0][whose], tiers[1][whose], missed[whose]) >= 0, whose
        for tier, result in zip(tiers, ("l1", "l2"), strict=True):
            assert tier[whose] == CHUNK_TOKENS * parts[result][whose], (whose, result)
    check_room(found)
    check_stores(found)
    requests = found.by("lmcache_requests_total", "operation", "outcome")
    assert requests == found.by("lmcache_request_duration_seconds_count", "operation", "outcome")
    looked_up = found.by("lmcache_mp_lookups_requests_total", "model_name")
    assert found.by("lmcache_lookup_duration_seconds_count", "model_name").items() <= looked_up.items()
    assert found.sum("lmcache_lookup_duration_seconds_count") == sum(looked_up.values())
    for event, counter in (
        ("lmcache_store_duration_seconds_count", {"direction": "store", "result": "done"}),
        ("lmcache_retrieve_duration_seconds_count", {"direction": "retrieve"}),
    ):
        assert found.sum(event) <= found.sum("lmcache_l1_transfers_total", **counter), event
    assert sum(requests.values()) <= found.sum("lmcache_requests_received_total")
    check_histograms(found)


def check_room(found: Scrape) -> None:
    slots = found.by("lmcache_l1_slots", "state")
    assert set(slots) == {("free",), ("cached",), ("held",), ("quarantined",)}
    assert min(slots.values()) >= 0
    assert 0 <= found.sum("lmcache_mp_l1_memory_usage_bytes") <= found.sum("lmcache_l1_capacity_bytes")
    assert 0 <= found.sum("lmcache_mp_l1_usage_ratio") <= 1
    in_use = sum(value for (state,), value in slots.items() if state != "free")
    assert bool(in_use) == bool(found.sum("lmcache_mp_l1_memory_usage_bytes"))
    used = found.by("lmcache_mp_l2_usage_bytes", "l2_name")
    for name, capacity in found.by("lmcache_l2_capacity_bytes", "l2_name").items():
        assert 0 <= used[name] <= capacity, name


def check_stores(found: Scrape) -> None:
    for admitted, ended, pending in (
        ("lmcache_l2_store_admitted_total", "lmcache_l2_store_ended_total", "lmcache_l2_store_pending"),
        (
            "lmcache_l2_store_admitted_size_bytes_total",
            "lmcache_l2_store_ended_size_bytes_total",
            "lmcache_l2_store_pending_size_bytes",
        ),
    ):
        over, left = found.by(ended, "l2_name"), found.by(pending, "l2_name")
        for name, whole in found.by(admitted, "l2_name").items():
            assert whole == over[name] + left[name], (admitted, name)
        assert min(found.values.get(pending, {(): 0.0}).values()) >= 0, pending
    jobs = found.by("lmcache_l2_jobs_in_flight", "l2_name", "operation")
    assert min(jobs.values(), default=0.0) >= 0, jobs


def check_histograms(found: Scrape) -> None:
    """Buckets only grow to the right, up to the count."""
    for name in [name for name in found.values if name.endswith("_bucket")]:
        series: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in found.values[name].items():
            series[tuple(each for each in labels if each[0] != "le")].append(value)
        counts = found.values[name.removesuffix("_bucket") + "_count"]
        assert counts.keys() == series.keys(), name
        for labels, buckets in series.items():
            assert [*sorted(buckets), buckets[-1]] == [*buckets, counts[labels]], (name, labels)
