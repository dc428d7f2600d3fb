"""Engines of one stock name that differ: a warning as long as both are there, and none for those that say what they mean."""

from __future__ import annotations

from typing import Any

import pytest

from core.tests.server.cache_resource import wait_until
from core.tests.server.conftest import StartServer
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine


def conflicts(server: Server) -> list[dict[str, Any]]:
    return [each for each in server.status()["conditions"] if each["name"] == "model_conflict"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"dtype": "float16"}, "types float16, float32"),
        ({"layers": 3}, "chunks of shard 0 of 1: float32[2, 16, 64]"),
        ({"world_size": 2}, "world sizes 1, 2"),
    ],
    ids=str,
)
def test_a_second_registration_with_other_facts(start_server: StartServer, other: dict[str, Any], says: str) -> None:
    server = start_server()
    with FakeEngine(server.info.engine_endpoint, model="stock"):
        assert conflicts(server) == []
        with FakeEngine(server.info.engine_endpoint, model="stock", **other) as second:
            (found,) = conflicts(server)
            assert (found["severity"], found["subject"], found["counts"]) == ("warning", "model stock", {"workers": 2})
            assert says in found["reason"]
            assert "LMCacheNodeConnector" in found["remedy"]
            second.worker.unregister_engine_driven(second.instance_id)
        wait_until(lambda: conflicts(server) == [])


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("stock", {}),
        ("another", {"dtype": "float16"}),
        ("stock##9f86d081884c7d65", {"dtype": "float16"}),
    ],
    ids=str,
)
def test_nothing_to_warn_of(start_server: StartServer, name: str, other: dict[str, Any]) -> None:
    server = start_server()
    with (
        FakeEngine(server.info.engine_endpoint, model="stock"),
        FakeEngine(server.info.engine_endpoint, model=name, **other),
    ):
        assert conflicts(server) == []


def test_engines_that_say_what_they_mean_may_differ(start_server: StartServer) -> None:
    server = start_server()
    name = "m##9f86d081884c7d65"
    with (
        FakeEngine(server.info.engine_endpoint, model=name),
        FakeEngine(server.info.engine_endpoint, model=name, world_size=2),
    ):
        assert conflicts(server) == []


def test_stages_of_one_engine_may_differ(start_server: StartServer) -> None:
    server = start_server()
    stages = [
        FakeEngine(server.info.engine_endpoint, model="stock", world_size=2, worker_id=stage, layers=2 + stage)
        for stage in range(2)
    ]
    with stages[0] as first, stages[1] as second:
        assert conflicts(server) == []
        for engine in (first, second):
            assert engine.store(list(range(32)))
        assert conflicts(server) == []
