"""Engines of one served name whose KV means something else: nothing is shared, and people go on saying the served name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from core.tests.server.cache.cache_site import A, B, Site
from core.tests.server.cache_resource import wait_until
from lmcache_devkit.fake_engine import FakeEngine

SOME, OTHERS, ADAPTER, OTHER_ADAPTER = "9f86d081884c7d65", "60303ae22b998861", "00" * 8, "ff" * 8


@contextmanager
def engine(site: Site, name: str) -> Iterator[FakeEngine]:
    with FakeEngine(site.server.info.engine_endpoint, model=name) as found:
        yield found


@contextmanager
def requests(of: FakeEngine, name: str) -> Iterator[None]:
    """Requests under another name than its worker has registered."""
    before, of._model = of._model, name
    try:
        yield
    finally:
        of.end()
        of._model = before


def store(of: FakeEngine, tokens: list[int]) -> None:
    assert of.store(tokens)
    of.end()


def test_engines_that_say_something_else_share_nothing(site: Site) -> None:
    with engine(site, f"m##{SOME}") as some, engine(site, f"m##{OTHERS}") as others, engine(site, "m") as stock:
        store(some, A)
        assert (some.lookup(A), others.lookup(A), stock.lookup(A)) == (4, 0, 0)
        store(others, A)
        assert (others.lookup(A), stock.lookup(A)) == (4, 0)


def test_requests_with_an_adapter_use_the_workers_of_their_engine(site: Site) -> None:
    name = f"m##{SOME}"
    with engine(site, name) as worker:
        store(worker, A)
        with requests(worker, f"{name}%%{ADAPTER}"):
            assert worker.lookup(A) == 0
            assert worker.store(A)
            assert worker.lookup(A, "again") == 4
            assert worker.retrieve(A, "again") == [worker.content(A, chunk) for chunk in range(4)]
            worker.end("again")
        with requests(worker, f"{name}%%{OTHER_ADAPTER}"):
            assert worker.lookup(A) == 0
        with requests(worker, f"m##{OTHERS}%%{ADAPTER}"):
            assert worker.lookup(A) == 0
            worker.store(A)  # refused: these are another engine's requests
        assert worker.lookup(A) == 4
        worker.end()
        assert len(site.operator.entries("tier=l1")) == 8


def test_a_stock_engine_with_an_adapter(site: Site) -> None:
    with requests(site.engine, f"model%%{ADAPTER}"):
        assert site.engine.store(A)
        assert site.engine.lookup(A) == 4
    assert site.engine.lookup(A) == 0
    site.engine.end()


def test_people_see_the_served_name_and_the_rest_apart(site: Site) -> None:
    name = f"org/m##{SOME}"
    with engine(site, name) as worker, requests(worker, f"{name}%%{ADAPTER}"):
        assert worker.store(A)
        worker.end()
        assert worker.lookup(A) == 4
        worker.end()
        status = site.server.status()
        assert [(each["model_name"], each["identity"]) for each in status["workers"]] == [
            ("model", ""),
            ("org/m", SOME),
        ]
        assert {each["model_name"] for each in status["models"]} == {"org/m"}, "any number of adapters is one row"
        entry = site.operator.entries("tier=l1")[0]
        assert (entry["model_name"], entry["identity"], entry["variant"]) == ("org/m", SOME, ADAPTER)


@pytest.mark.parametrize("asked", ["m", f"m##{SOME}"])
def test_chunks_are_found_under_the_served_name(site: Site, asked: str) -> None:
    with engine(site, f"m##{SOME}") as worker:
        store(worker, A)
        wait_until(lambda: site.held() == 0)
        named = {"model_name": asked, "token_ids": A}
        assert site.operator.post("/cache/pin", {**named, "name": "system"})["objects"] == 4
        (pin,) = site.operator.get("/cache/pins")["pins"]
        assert (pin["model_name"], pin["identity"], pin["variant"]) == ("m", SOME, "")
        site.operator.post("/cache/unpin", {"name": "system"})
        site.operator.post("/cache/clear", {})
        order = site.operator.post("/cache/prefetches", named, 202)
        assert site.finished(order["request_id"])["loaded_keys"] == 4
        checksums = site.operator.post("/cache/checksums", named)
        assert len(checksums["chunk_hashes"]) == 4


def test_a_served_name_of_several_engines_must_be_said_in_full(site: Site) -> None:
    with engine(site, f"m##{SOME}") as some, engine(site, f"m##{OTHERS}"):
        store(some, A)
        named = {"token_ids": A, "name": "p"}
        answer = site.operator.ask("POST", "/cache/pin", {**named, "model_name": "m"})
        assert answer.code == 422
        assert f"give the name of one of them: m##{OTHERS}, m##{SOME}" in answer.body["detail"]
        assert site.operator.post("/cache/pin", {**named, "model_name": f"m##{SOME}"})["objects"] == 4


def test_filters_take_either_name(site: Site) -> None:
    with engine(site, f"m##{SOME}") as some, engine(site, f"m##{OTHERS}") as others:
        store(some, A)
        store(others, B)
        store(site.engine, A)
        with requests(some, f"m##{SOME}%%{ADAPTER}"):
            assert some.store(B)
        wait_until(lambda: site.held() == 0)

        def count(model: str) -> int:
            return len(site.operator.entries(f"tier=l1&model_name={model}"))

        some_name = f"m%23%23{SOME}"
        assert [count("m"), count(some_name), count(f"{some_name}%25%25{ADAPTER}"), count("model")] == [12, 8, 4, 4]
        assert site.operator.ask("DELETE", f"/l2?model_name={some_name}").body["deleted"] == 8
        assert site.operator.ask("DELETE", "/l2?model_name=m").body["deleted"] == 4
        assert len(site.operator.entries("tier=l2")) == 4
