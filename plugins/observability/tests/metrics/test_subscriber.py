"""The subscriber as a whole: one snapshot of samples, exact sums, and everything in one exposition."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from lmcache_core import (
    ChunksRetrieved,
    ChunksStored,
    Event,
    Histogram,
    L2LookupCompleted,
    LoadCompleted,
    PrefetchCompleted,
    Sample,
    SampleKind,
    StoreCompleted,
)
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.metrics.ceiling import ALL
from lmcache_observability.metrics.open_metrics import open_metrics
from lmcache_observability.metrics.subscriber import EVENTS_MAX, MetricsSubscriber
from plugins.observability.tests.metrics.events import MODEL, answered, asked, came, left, lookup, read
from plugins.observability.tests.metrics.metrics_settings import metrics_settings

COUNTED = SampleKind("lmcache_mp.lookups", "requests", "Lookups", True, ("model_name", "cache_salt"))
AGE = SampleKind("lmcache.age", "s", "Oldest", False, ("cache_salt",))
USED = SampleKind("lmcache.used", "By", "Used", False, ("cache_salt",))
TOOK = SampleKind("lmcache.lookup.duration", "s", "Taken", True, ("model_name", "tier"), (0.1, 1.0))
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def server() -> FakeServerView:
    return FakeServerView(kinds=(COUNTED, AGE, USED, TOOK))


@pytest.fixture
def metrics(server: FakeServerView) -> Iterator[MetricsSubscriber]:
    subscriber = open_metrics(metrics_settings(label_values_max=3, sample_rate=1.0, exemplars=True))
    subscriber.begin(server)
    yield subscriber
    subscriber.close()


def publish(metrics: MetricsSubscriber, events: Iterable[Event]) -> None:
    calls = metrics.subscriptions()
    for event in events:
        calls[type(event)](event)
    metrics.batch_done()


def scraped(metrics: MetricsSubscriber) -> dict[str, Metric]:
    return {each.name: each for each in text_string_to_metric_families(metrics.expose("").body.decode())}


def counts(metrics: MetricsSubscriber, name: str) -> dict[tuple[str, ...], float]:
    """Of a histogram: how many, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for sample in scraped(metrics)[name].samples
        if sample.name == f"{name}_count"
    }


def test_sums_stay_exact_whatever_is_folded(metrics: MetricsSubscriber, server: FakeServerView) -> None:
    pairs = [(f"m{number % 5}", f"s{number}") for number in range(40)]
    for factor in (1, 2, 3):
        server.values = [COUNTED.of(factor * (number + 1), *pair) for number, pair in enumerate(pairs)]
        samples = scraped(metrics)["lmcache_mp_lookups_requests"].samples
        assert sum(sample.value for sample in samples) == factor * sum(range(1, 41))
        assert len({tuple(sample.labels.items()) for sample in samples}) == len(samples) <= 16
        shown = {sample.labels["cache_salt"] for sample in samples}
        assert shown == {"s0", "s1", "s2", "_other"}


def test_of_ages_the_largest_is_shown_and_of_bytes_the_sum(metrics: MetricsSubscriber, server: FakeServerView) -> None:
    server.values = [kind.of(number, f"s{number}") for kind in (AGE, USED) for number in range(6)]
    found = scraped(metrics)
    assert [sample.value for sample in found["lmcache_age_seconds"].samples] == [0, 1, 2, 5]
    assert [sample.value for sample in found["lmcache_used_bytes"].samples] == [0, 1, 2, 3 + 4 + 5]


def test_samples_are_taken_once_for_each_scrape(metrics: MetricsSubscriber, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[None]()

    def counted(_: FakeServerView) -> list[Sample]:
        taken.append(None)
        return [COUNTED.of(1, "m", "s"), AGE.of(1, "s")]

    monkeypatch.setattr(FakeServerView, "samples", counted)
    metrics.history.close()  # which takes samples, too
    taken.clear()
    scraped(metrics)
    assert len(taken) == 1


def test_events_do_not_wait_for_the_import_of_numpy(
    metrics: MetricsSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside busy threads it takes seconds, and an event's call that takes seconds is a failure of the subscriber."""
    imports, delivered = threading.Event(), threading.Event()
    waited = list[bool]()
    open_chunks = MetricsSubscriber._open_chunks

    def open_slowly(subscriber: MetricsSubscriber) -> object:
        imports.set()
        waited.append(delivered.wait(2))
        return open_chunks(subscriber)

    monkeypatch.setattr(MetricsSubscriber, "_open_chunks", open_slowly)
    for number in range(EVENTS_MAX):
        publish(metrics, lookup(f"request {number}", [number], hit=0))
    assert imports.wait(2)
    delivered.set()
    ceiling = next(each for each in metrics.ceilings() if each.cache_salt == ALL)
    assert ceiling.requested_chunks > 0, "an answer waits for the import, and leaves nothing out"
    assert waited == [True]


def test_every_event_ends_up_in_its_distribution(metrics: MetricsSubscriber) -> None:
    stored = ChunksStored(model_name=MODEL, cache_salt="", kv_rank=0, chunks=1, payload_bytes=10**9, seconds=0.5)
    retrieved = ChunksRetrieved(model_name=MODEL, cache_salt="", kv_rank=0, chunks=1, payload_bytes=10**9, seconds=0.5)
    publish(
        metrics,
        [
            *lookup("a", [1, 2], hit=1),
            stored,
            retrieved,
            StoreCompleted(adapter="d", job=1, stored=1, failed=0, seconds=0.1, stored_bytes=5, waited_seconds=2.0),
            L2LookupCompleted(adapter="d", job=1, request_id="a", keys=1, found=1, seconds=0.1),
            LoadCompleted(adapter="d", job=1, request_id="a", loaded=1, failed=0, loaded_bytes=5, seconds=0.1),
            PrefetchCompleted(request_id="a", found_keys=1, loaded_keys=1, failed_keys=0, loaded_bytes=1, seconds=0.1),
            came([1], at=1.0),
            read([1], at=2.0),
            left([1], at=3.0),
            came([1], at=4.0),
            asked("b", [1], at=1003.0),
        ],
    )
    for name in ("lmcache_store_duration_seconds", "lmcache_retrieve_duration_seconds"):
        assert counts(metrics, name) == {(MODEL,): 1}
    for name in ("store", "load"):
        speed = f"lmcache_mp_l0_l1_{name}_throughput_GB_per_second"
        assert counts(metrics, speed) == {(MODEL,): 1}
        (total,) = [each.value for each in scraped(metrics)[speed].samples if each.name.endswith("_sum")]
        assert total == 2.0
        assert counts(metrics, f"lmcache_mp_l2_{name}_throughput_GB_per_second") == {("d",): 1}
    for name in ("store_duration", "store_wait", "lookup_duration", "load_duration"):
        assert counts(metrics, f"lmcache_l2_{name}_seconds") == {("d",): 1}
    assert counts(metrics, "lmcache_prefetch_duration_seconds") == {(): 1}
    for name in ("lifetime", "idle_before_evict", "reuse_gap", "evict_reuse_gap"):
        assert counts(metrics, f"lmcache_mp_l1_chunk_{name}_seconds") == {(): 1}
    assert counts(metrics, "lmcache_mp_real_reuse_gap_seconds") == {("",): 1}


def test_it_takes_special_cases_of_core_s_events(metrics: MetricsSubscriber) -> None:
    class Special(PrefetchCompleted, frozen=True):
        """Of a plugin."""

    metrics.subscriptions()[PrefetchCompleted](Special("a", 1, 1, 0, 1, 0.1))
    metrics.batch_done()
    assert counts(metrics, "lmcache_prefetch_duration_seconds") == {(): 1}


def test_what_is_gathered_is_bounded_where_no_batch_ends(metrics: MetricsSubscriber) -> None:
    gather = metrics.subscriptions()[PrefetchCompleted]
    for _ in range(EVENTS_MAX):
        gather(PrefetchCompleted("a", 1, 1, 0, 1, 0.1))
    assert counts(metrics, "lmcache_prefetch_duration_seconds") == {(): EVENTS_MAX}


def test_exemplars_name_the_engine_s_trace_or_the_one_that_spans_have(
    metrics: MetricsSubscriber, server: FakeServerView
) -> None:
    server.values = [TOOK.histogram_of(Histogram((0, 1, 1), 40.5, 0.5, 40.0), MODEL, "l1")]
    event = answered("r", 1, 1)
    publish(metrics, [replace(event, trace_context=TRACEPARENT)])
    publish(metrics, [L2LookupCompleted(adapter="d", job=1, request_id="r", keys=1, found=1, seconds=0.3)])
    text = metrics.expose("application/openmetrics-text").body.decode()
    lines = [line for line in text.splitlines() if '# {trace_id="0af7651916cd43dd8448eb211c80319c"}' in line]
    assert [line.partition("{")[0] for line in lines] == [
        "lmcache_lookup_duration_seconds_bucket",
        "lmcache_l2_lookup_duration_seconds_bucket",
    ]
    publish(metrics, [replace(event, trace_context=TRACEPARENT[:-1] + "0", seconds=40.0)])
    assert "} 40 " not in metrics.expose("application/openmetrics-text").body.decode(), "it has no spans"


def test_without_spans_there_are_no_exemplars(server: FakeServerView) -> None:
    metrics = open_metrics(metrics_settings())
    metrics.begin(server)
    publish(metrics, [replace(answered("r", 1, 1), trace_context=TRACEPARENT)])
    assert "trace_id" not in metrics.expose("application/openmetrics-text").body.decode()
    metrics.close()


def test_ceilings_are_for_the_dashboard_too(metrics: MetricsSubscriber) -> None:
    publish(metrics, [*lookup("a", range(50), salt="t"), *lookup("b", range(50), hit=50, salt="t")])
    found = {(each.cache_salt, each.window): each for each in metrics.ceilings()}
    assert set(found) == {(salt, window) for salt in (ALL, "t") for window in ("5m", "1h", "start")}
    assert found["t", "5m"].actual == 0.5
    samples = scraped(metrics)["lmcache_hit_rate_actual"].samples
    assert {tuple(sample.labels.values()): sample.value for sample in samples}["start", "t"] == 0.5


def test_before_the_server_has_begun_there_are_no_samples() -> None:
    metrics = open_metrics(metrics_settings())
    assert metrics.samples() == ()
    assert not any(family.numbers or family.distributions for family in metrics.families())
    metrics.close()
