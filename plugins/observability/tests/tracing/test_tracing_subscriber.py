"""Events become spans: which ones, below which parents, and what happens when events are missing or late."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_core import ConfigError, LoadsDeclined
from lmcache_core.contracts.settings import validate
from lmcache_devkit import SubscriberSuite
from lmcache_observability.tracing.settings import TracingSettings
from lmcache_observability.tracing.tracing_subscriber import TracingSubscriber
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.tracing.stand_ins import (
    NOT_SAMPLED,
    TRACEPARENT,
    SinkStandIn,
    abandoned,
    ended,
    feed,
    l2_looked_up,
    loaded,
    looked_up,
    retrieved,
    started,
    stored,
    stored_in_l2,
    whole_request,
)

ENDPOINT = "http://127.0.0.1:4318"


class TestTracing(SubscriberSuite):
    offer = "tracing"

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {
            "otlp_endpoint": ENDPOINT,
            "export_delay_seconds": 60,
            "export_timeout_seconds": 0.2,
            "export_queue_spans": 100,
            "pending_requests_max": 500,
        }


def tracing(**settings: Any) -> tuple[TracingSubscriber, SinkStandIn]:
    sink = SinkStandIn()
    subscriber = TracingSubscriber(TracingSettings(otlp_endpoint=ENDPOINT, **settings), lambda *_: sink)
    subscriber.begin(ServerStandIn())
    return subscriber, sink


def test_a_request_is_one_trace() -> None:
    subscriber, sink = tracing()
    feed(subscriber, whole_request())
    root = sink.named("lmcache.request")
    assert {span.trace_id for span in sink.spans} == {root.trace_id}
    assert root.parent_id is None
    parents = {span.step.name: span.parent_id for span in sink.spans if span is not root}
    lookup, prefetch = sink.named("lmcache.lookup"), sink.named("lmcache.prefetch")
    assert parents == {
        "lmcache.lookup": root.span_id,
        "lmcache.prefetch": lookup.span_id,
        "lmcache.l2.lookup": prefetch.span_id,
        "lmcache.l2.load": prefetch.span_id,
        "lmcache.retrieve": root.span_id,
        "lmcache.store": root.span_id,
    }
    assert len({span.span_id for span in sink.spans}) == len(sink.spans)


def test_times_are_those_of_the_events() -> None:
    subscriber, sink = tracing()
    feed(subscriber, whole_request())
    times = {span.step.name: (span.step.begin, span.step.end) for span in sink.spans}
    assert times["lmcache.request"] == (100.0, 104.0)
    assert times["lmcache.lookup"] == (100.0, 101.0)
    assert times["lmcache.retrieve"] == (101.25, 101.5)
    assert times["lmcache.l2.load"] == pytest.approx((100.4, 100.8))


def test_the_engines_span_is_the_parent_of_the_request() -> None:
    subscriber, sink = tracing(sample_ratio=0.0)
    feed(subscriber, [started(parent=TRACEPARENT), looked_up(parent=TRACEPARENT), ended()])
    root = sink.named("lmcache.request")
    assert (root.parent_id, root.parent_is_remote) == (0xB7AD6B7169203331, True)
    assert root.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert not sink.named("lmcache.lookup").parent_is_remote


def test_what_the_engine_does_not_sample_gets_no_span() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [started(parent=NOT_SAMPLED), looked_up(parent=NOT_SAMPLED), retrieved(), ended(), stored_in_l2()])
    assert sink.spans == []


def test_what_ends_after_its_request_is_sent_below_the_same_root() -> None:
    subscriber, sink = tracing()
    feed(subscriber, whole_request())
    feed(subscriber, [stored_in_l2(), stored(at=111.0)])
    late = sink.named("lmcache.l2.store")
    root = sink.named("lmcache.request")
    assert (late.trace_id, late.parent_id) == (root.trace_id, root.span_id)
    assert (late.step.begin, late.step.end) == (107.5, 110.0)
    assert late.step.attributes["lmcache.waited_seconds"] == 2.0
    assert len([span for span in sink.spans if span.step.name == "lmcache.store"]) == 2
    assert len([span for span in sink.spans if span.step.name == "lmcache.request"]) == 1


def test_a_request_that_comes_again_gets_a_span_again() -> None:
    subscriber, sink = tracing()
    for at in (0.0, 50.0):
        feed(subscriber, [started(at=at), looked_up(at=at + 1), ended(at=at + 2)])
    roots = [span for span in sink.spans if span.step.name == "lmcache.request"]
    assert len({root.span_id for root in roots}) == 2
    assert len({root.trace_id for root in roots}) == 1


def test_l2_events_of_unknown_requests_begin_nothing() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [stored_in_l2("long ago"), loaded("long ago"), l2_looked_up("long ago"), stored_in_l2("")])
    subscriber.close()
    assert sink.spans == []
    assert subscriber.incomplete == 0


def test_requests_beyond_the_limit_are_abandoned_and_counted() -> None:
    subscriber, sink = tracing(pending_requests_max=2)
    for number in range(4):
        feed(subscriber, [started(f"r{number}"), looked_up(f"r{number}")])
    abandoned = [span.step.attributes for span in sink.spans if span.step.name == "lmcache.request"]
    assert [about["lmcache.request_id"] for about in abandoned] == ["r0", "r1"]
    assert all(about["lmcache.incomplete"] for about in abandoned)
    assert subscriber.incomplete == 2
    subscriber.close()
    assert sink.closed
    assert len([span for span in sink.spans if span.step.name == "lmcache.request"]) == 4


def test_a_request_that_the_server_ends_is_incomplete() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [started("dead"), looked_up("dead"), ended("dead", at=900.0, incomplete=True)])
    root = sink.named("lmcache.request")
    assert root.step.attributes["lmcache.incomplete"]
    assert root.step.end == looked_up("dead").at, "what it did last"
    assert subscriber.incomplete == 1
    feed(subscriber, [stored("dead"), ended("dead")])
    assert [span.step.name for span in sink.spans if span.parent_id == root.span_id] == [
        "lmcache.lookup",
        "lmcache.store",
    ]


def test_a_busy_second_gets_no_more_than_its_share() -> None:
    subscriber, sink = tracing(requests_per_second_max=5)
    for number in range(100):
        at = 100 + number / 100
        feed(
            subscriber,
            [started(f"r{number}", at=at), looked_up(f"r{number}", at=at, seconds=0), ended(f"r{number}", at)],
        )
    requests = [span for span in sink.spans if span.step.name == "lmcache.request"]
    assert 5 <= len(requests) <= 10
    assert subscriber.beyond_budget == 100 - len(requests)
    parented = [started("p", at=100.99, parent=TRACEPARENT), looked_up("p", at=100.99), ended("p", 100.99)]
    feed(subscriber, parented)
    assert len([span for span in sink.spans if span.step.name == "lmcache.request"]) == len(requests) + 1


def test_salts_are_digests_unless_they_may_be_plain() -> None:
    for style, shown in (("hashed", False), ("plain", True)):
        subscriber, sink = tracing(salts=style)
        feed(subscriber, [started(salt="tenant-secret"), looked_up(salt="tenant-secret"), ended()])
        assert ("tenant-secret" in repr(sink.spans)) is shown
        assert "lmcache.cache_salt" in sink.named("lmcache.request").step.attributes


def test_requests_of_two_tenants_that_are_called_alike_are_distinguished() -> None:
    subscriber, sink = tracing(salts="plain")
    other = TRACEPARENT.replace("0af7", "1111")
    feed(subscriber, [started(salt="one", parent=TRACEPARENT), looked_up(salt="one", parent=TRACEPARENT)])
    feed(subscriber, [started(salt="two", at=101.1, parent=other), looked_up(salt="two", at=101.2, parent=other)])
    feed(subscriber, [retrieved(salt="two"), ended(), stored(salt="two")])
    feed(subscriber, [stored(salt="one")])
    subscriber.close()
    by_trace: dict[int, list[str]] = {}
    for span in sink.spans:
        by_trace.setdefault(span.trace_id, []).append(span.step.name)
    assert sorted(by_trace.pop(0x0AF7651916CD43DD8448EB211C80319C)) == ["lmcache.lookup", "lmcache.request"]
    assert sorted(by_trace[0x1111651916CD43DD8448EB211C80319C]) == [
        "lmcache.lookup",
        "lmcache.request",
        "lmcache.retrieve",
        "lmcache.store",
    ]
    roots = [span.step.attributes for span in sink.spans if span.step.name == "lmcache.request"]
    assert {about.get("lmcache.cache_salt") for about in roots} == {"one", "two", None}, "the last was only stored"


def test_a_worker_of_another_tenant_ends_a_request_of_that_name() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [retrieved(salt="one"), retrieved(salt="two"), ended()])
    roots = [span.span_id for span in sink.spans if span.step.name == "lmcache.request"]
    assert sorted(span.parent_id or 0 for span in sink.spans if span.step.name == "lmcache.retrieve") == sorted(roots)


def test_what_says_no_tenant_belongs_to_the_last_one_of_its_name() -> None:
    subscriber, sink = tracing()
    feed(
        subscriber,
        [started(salt="one"), l2_looked_up(), started(salt="two", at=100.4), loaded(), looked_up(salt="two")],
    )
    feed(subscriber, [ended()])
    assert sink.named("lmcache.l2.lookup").parent_id != sink.named("lmcache.l2.load").parent_id
    assert sink.named("lmcache.l2.load").parent_id == sink.named("lmcache.lookup").span_id
    assert len([span for span in sink.spans if span.step.name == "lmcache.request"]) == 2


def test_spans_of_a_batch_are_sent_together() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [event for number in range(20) for event in (looked_up(f"r{number}"), ended(f"r{number}"))])
    assert (sink.sends, len(sink.spans)) == (1, 40)


def test_a_request_that_never_ends_stays_small() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [started(), *(retrieved(at=101.0 + number) for number in range(2000)), ended(at=9000.0)])
    assert len(sink.spans) == 1025
    assert sink.named("lmcache.request").step.attributes["lmcache.steps_left_out"] == 976


def test_failures_of_a_backend_are_faults_of_its_spans() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [started(), loaded(failed=2), looked_up(), ended()])
    assert sink.named("lmcache.l2.load").step.fault == "2 of 3 objects failed"


def test_a_lookup_that_never_had_an_answer_is_a_span_too() -> None:
    subscriber, sink = tracing()
    feed(subscriber, [started(), abandoned(), ended()])
    lookup = sink.named("lmcache.lookup").step
    assert (lookup.begin, lookup.end, lookup.attributes["lmcache.outcome"]) == (100.0, 102.0, "abandoned")


@pytest.mark.parametrize("endpoint", [None, "", "host:4318"])
def test_spans_need_a_collector(endpoint: str | None) -> None:
    given = {} if endpoint is None else {"otlp_endpoint": endpoint}
    with pytest.raises(ConfigError, match=r"--enable-tracing: .*http://"):
        validate(TracingSettings, given, "--enable-tracing")


def test_loads_that_were_not_worth_it_are_seen_where_they_were_declined() -> None:
    subscriber, sink = tracing()
    looked = l2_looked_up()
    declined = LoadsDeclined(adapter="s3", request_id=looked.request_id, objects=3, object_bytes=96, at=looked.at)
    events = whole_request()
    events.insert(2, declined)
    feed(subscriber, events)
    span = sink.named("lmcache.l2.declined")
    assert span.parent_id == sink.named("lmcache.prefetch").span_id
    assert dict(span.step.attributes) == {"db.namespace": "s3", "lmcache.objects": 3, "lmcache.bytes": 96}
    assert span.step.begin == span.step.end == looked.at
