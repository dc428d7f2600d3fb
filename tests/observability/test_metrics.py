"""Metrics of a real server, as a real Prometheus and a collector have them; and the page that lists them."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from demo.child_process import ChildError
from demo.server_process import HOST, ServerProcess
from lmcache_blend_legacy.service import BlendLegacyService
from lmcache_client.messages import BlockAllocation
from lmcache_client.operations import REPORT_BLOCK_ALLOCATION
from lmcache_devkit import FakeEngine, free_port
from scripts import metric_docs
from tests.observability.otlp_collector import OtlpCollector
from tests.observability.prometheus_process import PROMETHEUS, PROMTOOL, PrometheusProcess

needs_prometheus = pytest.mark.skipif(not PROMETHEUS, reason="prometheus is not installed (scripts.system_packages)")

WITHOUT_SERIES = {
    "lmcache_mp_event_bus_dropped_events_total": "no subscriber was too far behind",
    "lmcache_mp_l2_prefetch_failure_chunks_total": "no load failed",
    "lmcache_l2_serde_refused_total": "the serde took every object",
    **dict.fromkeys(
        [f"{kind.name.replace('.', '_')}_total" for kind in BlendLegacyService.sample_kinds],
        "a server has one of the two modules that blend",
    ),
}
"""Metrics that have none after what happens here, and why."""
SOMETIMES = {
    "lmcache_condition": "what was refused is a condition for a minute",
    "lmcache_l2_store_speed_bytes_per_second": "only a backend that was busy for long has shown a speed",
}
"""Metrics that have one or none after what happens here, and why."""
LINT_EXCEPTIONS = {
    "_GB_per_second metric names should not contain abbreviated units": "names of the public server",
    'process_open_file_descriptor_count non-histogram and non-summary metrics should not have "_count" suffix': (
        "a name by OpenTelemetry's conventions"
    ),
}
"""Ends of what promtool says although it is right as it is, and why."""


class Listed(NamedTuple):
    type: str
    labels: frozenset[str]


OF_PEERS = "lmcache_peers_"
"""Metrics of a service that this server does not run (tests/peers has them)."""


def listed() -> dict[str, Listed]:
    """What the page lists for a server without peers, by the name in Prometheus."""
    items = re.findall(r"^\* `(\w+)` \((\w+)([^)]*)\):", metric_docs.PAGE.read_text(), re.MULTILINE)
    return {
        name: Listed(type_, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, type_, labels in items
        if not name.startswith(OF_PEERS)
    }


def test_the_page_is_up_to_date() -> None:
    assert metric_docs.main(["--check"]) == 0, "run: python -m scripts.metric_docs"
    assert len(listed()) > 100


class Site(NamedTuple):
    server: ServerProcess
    port: int
    collector: OtlpCollector


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that everything happened to that a metric is about, besides trouble."""
    folder, port = tmp_path_factory.mktemp("metrics"), free_port()
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.5}
    adapter = {"type": "memory", "max_size_gb": 0.004, "eviction": eviction}
    settings = {
        "subscriber:metrics": {"otlp_interval_seconds": 1},
        "subscriber:tracing": {"requests_per_second_max": 10_000, "export_delay_seconds": 0.1},
    }
    with OtlpCollector() as collector:
        options = ["--chunk-size", "16", "--l1-size-gb", "0.004", "--eviction-policy", "IsolatedLRU"]
        encoded = {"type": "fs", "base_path": str(folder / "l2"), "max_capacity_gb": 0.1, "serde": "zstd"}
        options += [
            "--l2-adapter",
            json.dumps(adapter),
            "--l2-adapter",
            json.dumps(encoded),
            "--quota",
            '{"small": 0.0005, "none": 0}',
            "--reject-unsalted",
            "--l1-verify-reads",
            "--engine-type",
            "blend",
        ]
        options += ["--prometheus-port", str(port), "--otlp-endpoint", collector.endpoint, "--enable-tracing"]
        options += ["--metrics-sample-rate", "1", "--offer-settings", json.dumps(settings)]
        with ServerProcess(options, folder / "server.log") as server:
            work(f"tcp://{HOST}:{server.port}")
            yield Site(server, port, collector)


def work(endpoint: str) -> None:
    """Stores more than L1 holds, reads it from both tiers, and does what is refused."""
    for salt in ("small", "none"):
        with FakeEngine(endpoint, salt=salt) as engine:
            for number in range(4):
                request(engine, prompt(number), f"{salt}-{number}")
    with FakeEngine(endpoint, model="large", salt="big", layers=4) as engine:
        for number in range(60):
            request(engine, prompt(number), f"big-{number}")
            request(engine, prompt(number), f"again-{number}")
        for number in range(3):  # evicted by now
            request(engine, prompt(number), f"back-{number}")
        time.sleep(0.5)  # for stores to get to L2
        engine.scheduler.clear()
        for number in range(55, 60):
            request(engine, prompt(number), f"late-{number}")
        assert engine.retrieve(prompt(999), "nothing") is None
        for name, tokens in (("blocks-1", prompt(1)), ("blocks-2", prompt(1)), ("blocks-3", prompt(2))):
            allocated = BlockAllocation(name, [7], list(tokens[:16]))
            engine.scheduler.receive(engine.scheduler.send(REPORT_BLOCK_ALLOCATION, 1, "large", [allocated]))
            engine.end(name)
    with FakeEngine(endpoint) as engine:
        assert engine.lookup(prompt(1), "unsalted") == 0
        engine.end("unsalted")
    time.sleep(0.5)  # for events to get to their subscribers


def request(engine: FakeEngine, tokens: Sequence[int], name: str) -> None:
    hit = engine.lookup(tokens, name) * engine.chunk_tokens
    if hit:
        engine.retrieve(tokens, name, 0, hit)
    if hit < len(tokens):
        engine.store(tokens, name, hit)
    engine.end(name)


def prompt(number: int) -> Sequence[int]:
    return range(number * 1000, number * 1000 + 16 * 8)


def text(port: int, path: str = "/metrics", accept: str = "") -> str:
    asked = urllib.request.Request(f"http://{HOST}:{port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        found: str = answer.read().decode()
        return found


@needs_prometheus
def test_prometheus_has_every_metric_and_no_other(site: Site, tmp_path: Path) -> None:
    with PrometheusProcess(f"{HOST}:{site.port}", tmp_path) as prometheus:
        prometheus.wait_for(lambda: bool(prometheus.values('up{job="lmcache"} == 1')))
        prometheus.wait_for(lambda: bool(prometheus.values("lmcache_uptime_seconds")))
        metadata = {name: rows[0]["type"] for name, rows in prometheus.ask("metadata").items()}
        types = {name.removesuffix("_total"): listed.type for name, listed in listed().items()}
        metadata.pop("target_info", None), metadata.pop("target", None)
        assert {name.removesuffix("_total"): type_ for name, type_ in metadata.items()} == types
        series = prometheus.values('{job="lmcache"}')
        check_series([labels for labels, _ in series])
        check_sums(prometheus)


def check_series(series: Sequence[Mapping[str, str]]) -> None:
    """Each listed metric has one, with the labels that the page says."""
    found: dict[str, set[str]] = {}
    for labels in series:
        name = re.sub(r"_(bucket|sum|count)$", "", labels["__name__"])
        name = name if name in listed() else labels["__name__"]
        found.setdefault(name, set()).update(set(labels) - {"__name__", "job", "instance", "le"})
    added = {"up", "target_info", "scrape_duration_seconds"}
    found = {name: labels for name, labels in found.items() if name not in added and not name.startswith("scrape_")}
    assert set(found) - set(listed()) == set()
    assert set(listed()) - set(found) - set(SOMETIMES) == set(WITHOUT_SERIES)
    for name, names in found.items():
        assert names <= listed()[name].labels, name


def check_sums(prometheus: PrometheusProcess) -> None:
    """What must add up does, in what Prometheus stored."""
    by_result = {
        labels["result"]: value for labels, value in prometheus.values("sum by (result) (lmcache_lookup_chunks_total)")
    }
    assert min(by_result.values()) > 0, "something was hit in L1, something in L2, and something missed"
    ((_, requested),) = prometheus.values("sum(lmcache_mp_lookup_requested_tokens_total)")
    ((_, hit),) = prometheus.values("sum(lmcache_mp_lookup_hit_tokens_total)")
    ((_, missed),) = prometheus.values("sum(lmcache_lookup_missed_total)")
    assert requested == hit + missed == 16 * sum(by_result.values())
    ((_, counted),) = prometheus.values("sum(lmcache_lookup_duration_seconds_count)")
    ((_, lookups),) = prometheus.values("sum(lmcache_mp_lookups_requests_total)")
    assert counted == lookups, "an event for each lookup"


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed (scripts.system_packages)")
def test_promtool_finds_nothing_to_complain_about(site: Site) -> None:
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=text(site.port),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if not line.endswith(tuple(LINT_EXCEPTIONS))]
    assert complaints == []


def test_the_admin_api_has_the_same(site: Site) -> None:
    def names(exposed: str) -> set[str]:
        return set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))

    assert names(text(site.server.http_port)) == names(text(site.port))


def test_open_metrics_have_the_traces_of_requests(site: Site) -> None:
    exposed = text(site.port, accept="application/openmetrics-text; version=1.0.0")
    assert exposed.endswith("# EOF\n")
    traces = set(re.findall(r'# \{trace_id="([0-9a-f]{32})"\}', exposed))
    site.collector.wait_for(lambda: traces <= {span.trace_id.hex() for span in site.collector.spans()})
    assert traces
    assert not set(re.findall(r"request_id|big-\d", exposed)), "no label comes from a request"


def test_a_collector_gets_the_same(site: Site) -> None:
    site.collector.wait_for(lambda: "lmcache_mp.lookups" in site.collector.metrics())
    found = site.collector.metrics()
    types = {"sum": "counter", "gauge": "gauge", "histogram": "histogram"}
    page = metric_docs.PAGE.read_text()
    for name, metric in found.items():
        data = metric.WhichOneof("data")
        assert data is not None
        item = rf"^\* `\w+` \({types[data]}\b(?:(?!\n\*).)*\sOTLP:\s+`{re.escape(name)}`"
        assert re.search(item, page, re.MULTILINE | re.DOTALL), name
    assert len(found) >= len(listed()) - len(WITHOUT_SERIES) - len(SOMETIMES)


def test_a_port_that_was_asked_for_must_be_had(site: Site, tmp_path: Path) -> None:
    options = ["--prometheus-port", str(site.port), "--l1-size-gb", "0.01"]
    server = ServerProcess(options, tmp_path / "log")
    with pytest.raises(ChildError, match=rf"--prometheus-port: cannot listen on 127\.0\.0\.1:{site.port}"):
        server.start()


def test_metrics_can_be_switched_off(tmp_path: Path) -> None:
    with ServerProcess(["--disable-metrics", "--l1-size-gb", "0.01"], tmp_path / "log") as server:
        server.status()
        with pytest.raises(urllib.error.HTTPError) as raised:
            text(server.http_port)
        assert raised.value.code == 404
        assert "--disable-metrics" in raised.value.read().decode()
