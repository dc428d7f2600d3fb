"""Conformance of the state in Redis, with the redis-server of the system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from lmcache_coordinator.quotas import WATCHED, Quotas
from lmcache_core import ConfigError
from lmcache_devkit import CoordinatorStateSuite
from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer
from tests.remote.redis_servers import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


class TestRedis(CoordinatorStateSuite):
    offer = "redis"
    examples = 5

    @pytest.fixture
    def settings(self, server: RedisServer) -> Mapping[str, Any]:
        return {"address": f"redis://127.0.0.1:{server.port}/0"}


def test_a_redis_that_has_lost_its_data_has_no_quotas(server: RedisServer) -> None:
    """What is shown and acted on follows, and is not read all the time from then on."""
    offer = OpenableOffer(
        installed_offer("coordinator_state", "redis"),
        {"address": f"redis://127.0.0.1:{server.port}/0", "prefix": "lost:"},
    )
    with closing(offer.open()) as state, server.client() as client:
        quotas = Quotas(state, 0, False)
        for number in range(5):
            quotas.set("a", number)
        quotas.follow(0.0)
        assert quotas.last.were_set
        client.delete(*client.keys("lost:*"))
        quotas.follow(0.0)
        assert (quotas.last.were_set, dict(quotas.last.limits)) == (False, {})
        assert not state.wait(WATCHED, quotas.last.revision, 0.0), "it has read what there is"
        quotas.set("b", 1)
        quotas.follow(0.0)
        assert (quotas.last.were_set, dict(quotas.last.limits)) == (True, {"b": 1})


def test_a_prefix_is_read_without_what_else_there_is(server: RedisServer) -> None:
    """A quota is read for each answer, and a million chunks may be pinned.  Entries without the set of keys are found, too."""
    offer = OpenableOffer(
        installed_offer("coordinator_state", "redis"),
        {"address": f"redis://127.0.0.1:{server.port}/0", "prefix": "many:"},
    )
    with closing(offer.open()) as state, server.client() as client:
        client.hset("many:entries", mapping={f"pin/{number}": b"1:" + bytes(20_000) for number in range(500)})
        client.set("many:revision", 1)
        state.write("quota/a", b"1")
        assert len(state.read("").entries) == 501
        sent = client.info("stats")["total_net_output_bytes"]
        assert list(state.read("quota").entries) == ["quota/a"]
        assert client.info("stats")["total_net_output_bytes"] - sent < 100_000
        state.write("quota/a", None)
        assert len(state.read("pin/").entries) == len(state.read("").entries) == 500


@pytest.mark.parametrize("address", ["http://a:1", "redis://", "sentinel://a:1,b:2"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        OpenableOffer(installed_offer("coordinator_state", "redis"), {"address": address}).open()
