"""Conformance of the state in etcd, with the etcd-server of the system."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lmcache_core import ConfigError
from lmcache_devkit import CoordinatorStateSuite
from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer
from tests.fleet.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


class TestEtcd(CoordinatorStateSuite):
    offer = "etcd"
    examples = 5

    @pytest.fixture
    def settings(self, server: EtcdServer) -> Mapping[str, Any]:
        return {"address": f"http://127.0.0.1:1,{server.url}"}  # the first one is down


def test_requests_to_etcd_are_not_in_the_coordinators_log(server: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    """There are several in each second."""
    opened = OpenableOffer(installed_offer("coordinator_state", "etcd"), {"address": server.url}).open()
    with caplog.at_level(logging.INFO):
        opened.write("logged", b"1")
    opened.close()
    assert [record.getMessage() for record in caplog.records] == []


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected URLs such as http://"):
        OpenableOffer(installed_offer("coordinator_state", "etcd"), {"address": "10.0.0.1:2379"}).open()
