"""Spans of a real server, as a collector receives them; and what the server itself says of its slowest requests."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from demo.server_process import ServerProcess
from lmcache_devkit import FakeEngine
from tests.observability.otlp_collector import OtlpCollector

TRACE_ID, ENGINE_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{ENGINE_SPAN}-01"
NOT_SAMPLED = f"00-{'7' * 32}-{ENGINE_SPAN}-00"
SALT = "tenant-with-a-secret-name"
TOKENS = range(64 * 4)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as collector:
        yield collector


@pytest.fixture
def server(collector: OtlpCollector, tmp_path: Path) -> Iterator[ServerProcess]:
    options = ["--enable-tracing", "--otlp-endpoint", collector.endpoint, "--chunk-size", "64", "--l1-size-gb", "0.05"]
    options += ["--l2-adapter", '{"type": "memory", "max_size_gb": 0.1}', "--disable-metrics"]
    options += ["--offer-settings", '{"subscriber:tracing": {"export_delay_seconds": 0.05}}']
    with ServerProcess(options, tmp_path / "log") as server:
        yield server


def work(server: ServerProcess, collector: OtlpCollector, parent: str | None) -> None:
    """Store a prompt, forget it in L1, and ask for it again."""
    with FakeEngine(f"tcp://127.0.0.1:{server.port}", salt=SALT) as engine:
        assert engine.lookup(TOKENS, "first") == 0
        assert engine.store(TOKENS, "first")
        engine.end("first")
        collector.wait_for(lambda: "lmcache.l2.store" in names(collector))
        engine.scheduler.clear()
        key = engine.key(TOKENS, "second", 0, len(TOKENS), of_worker=False)
        configs = {"traceparent": parent} if parent else None
        assert engine.scheduler.lookup_hits(msgspec.structs.replace(key, request_configs=configs)) == 4
        assert engine.retrieve(TOKENS, "second") is not None
        engine.end("second")


def names(collector: OtlpCollector) -> list[str]:
    return [span.name for span in collector.spans()]


def attributes(span: Span) -> dict[str, object]:
    values = {each.key: each.value for each in span.attributes}
    return {key: getattr(value, str(value.WhichOneof("value"))) for key, value in values.items()}


def of_request(collector: OtlpCollector, request: str) -> dict[str, Span]:
    """Its spans by name."""
    (root,) = [span for span in collector.spans() if attributes(span).get("lmcache.request_id") == request]
    return {span.name: span for span in collector.spans() if span.trace_id == root.trace_id}


def test_a_request_is_part_of_the_engines_trace(server: ServerProcess, collector: OtlpCollector) -> None:
    work(server, collector, TRACEPARENT)
    collector.wait_for(lambda: names(collector).count("lmcache.request") == 2)
    first, second = of_request(collector, "first"), of_request(collector, "second")
    assert first.keys() >= {"lmcache.request", "lmcache.lookup", "lmcache.store", "lmcache.l2.store"}
    assert second.keys() == {
        "lmcache.request",
        "lmcache.lookup",
        "lmcache.prefetch",
        "lmcache.l2.lookup",
        "lmcache.l2.load",
        "lmcache.retrieve",
    }
    root = second["lmcache.request"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, ENGINE_SPAN)
    assert first["lmcache.request"].trace_id != root.trace_id
    assert second["lmcache.lookup"].parent_span_id == root.span_id
    assert second["lmcache.prefetch"].parent_span_id == second["lmcache.lookup"].span_id
    assert second["lmcache.l2.load"].parent_span_id == second["lmcache.prefetch"].span_id
    for span in [*first.values(), *second.values()]:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    load = attributes(second["lmcache.l2.load"])
    assert (load["db.namespace"], load["db.operation.name"]) == ("memory", "load")
    assert attributes(second["lmcache.lookup"])["lmcache.outcome"] == "hit"
    resource = {
        each.key: each.value.string_value for each in collector.trace_requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "lmcache"


def test_what_the_engine_does_not_sample_is_not_sent(server: ServerProcess, collector: OtlpCollector) -> None:
    work(server, collector, NOT_SAMPLED)
    with FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine:
        engine.lookup(TOKENS, "third")
        engine.end("third")
    collector.wait_for(lambda: names(collector).count("lmcache.request") == 2)
    assert {attributes(span)["lmcache.request_id"] for span in collector.spans() if span.name == "lmcache.request"} == {
        "first",
        "third",
    }


def test_salts_and_tokens_are_in_no_span(server: ServerProcess, collector: OtlpCollector) -> None:
    work(server, collector, None)
    collector.wait_for(lambda: names(collector).count("lmcache.request") == 2)
    sent = b"".join(request.SerializeToString() for request in collector.trace_requests)
    assert SALT.encode() not in sent
    assert attributes(of_request(collector, "second")["lmcache.request"])["lmcache.cache_salt"]


def test_the_slowest_requests_are_answered_without_a_collector(tmp_path: Path) -> None:
    options = ["--chunk-size", "64", "--l1-size-gb", "0.05", "--prometheus-port", "0"]
    with ServerProcess(options, tmp_path / "log") as server:
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", salt=SALT) as engine:
            engine.lookup(TOKENS, "only")
            engine.store(TOKENS, "only")
            engine.end("only")
        server.status()  # the admin API comes up a moment after the engine port
        url = f"http://127.0.0.1:{server.http_port}/requests/slowest?limit=5"
        wait_for(lambda: bool(_asked(url)["requests"]))
        (request,) = _asked(url)["requests"]
    assert request["request_id"] == "only"
    assert [step["name"] for step in request["steps"]] == ["lmcache.lookup", "lmcache.store"]
    assert SALT not in json.dumps(request)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
