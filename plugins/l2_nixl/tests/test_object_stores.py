"""A pool in an object store keeps every requirement: S3 as moto speaks it, Azure Blob Storage as Azurite does."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from lmcache_devkit import BorrowedMemory, L2AdapterSuite, adapter_context
from lmcache_devkit.l2.rig import OBJECT_BYTES
from lmcache_l2_nixl.config import NixlStoreSettings
from lmcache_l2_nixl.store import open_nixl_store
from lmcache_nixl_agent.agent import NixlAgent
from lmcache_object_slots import slot_adapter
from plugins.l2_nixl.tests.object_stores import AZURITE, azurite, azurite_program, moto
from plugins.l2_nixl.tests.stalling import stall_nixl

pytest.importorskip("nixl", reason="no build of NIXL is installed")
pytestmark = pytest.mark.slow

POOL_SIZE = 1100
SMALL_SLOTS = 20
LEASE_SECONDS = 20.0
"""A twentieth of it is what a claim takes, and more than a request to a server on this machine."""


@pytest.fixture(autouse=True)
def patient_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_adapter, "START_PATIENCE_SECONDS", 15.0)


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, Any]]:
    with moto() as params:
        yield params


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    with azurite(azurite_program() or "", tmp_path_factory.mktemp("azurite")) as params:
        yield params


class ObjectPoolSuite(L2AdapterSuite):
    offer = "nixl_store"
    small_bytes = SMALL_SLOTS * OBJECT_BYTES
    open_close_rounds = 5
    payload_bytes_max = 8 * 2**20 + 1
    backend = ""

    @pytest.fixture
    def settings(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.pool(params, POOL_SIZE, 9 * 2**20)

    @pytest.fixture
    def small_settings(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.pool(params, SMALL_SLOTS, 16 * 2**10)

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_nixl(monkeypatch)

    def pool(self, params: Mapping[str, Any], size: int, slot_bytes: int) -> Mapping[str, Any]:
        return {
            "backend": self.backend, "pool_size": size, "slot_bytes": slot_bytes, "backend_params": params,
            "object_prefix": f"{uuid.uuid4().hex}/", "owner_lease_seconds": LEASE_SECONDS,
        }  # fmt: skip


class TestS3(ObjectPoolSuite):
    backend = "OBJ"

    @pytest.fixture
    def params(self, s3: Mapping[str, Any]) -> Mapping[str, Any]:
        return s3

    def test_what_cannot_be_given_back_leaves_no_thread(
        self, settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        context = adapter_context(BorrowedMemory(), name="given-back")
        adapter = open_nixl_store(NixlStoreSettings.model_validate(settings), context)

        def refuse(agent: NixlAgent, registration: object) -> None:
            raise OSError(5, "NIXL could not deregister (made up)")

        monkeypatch.setattr(NixlAgent, "deregister", refuse)
        adapter.close(30)
        assert not [thread.name for thread in threading.enumerate() if "given-back" in thread.name]


@pytest.mark.skipif(
    azurite_program() is None, reason=f"azurite-blob is not installed: npm install azurite, and name it in {AZURITE}"
)
class TestAzureBlob(ObjectPoolSuite):
    backend = "AZURE_BLOB"

    @pytest.fixture
    def params(self, azure: Mapping[str, Any]) -> Mapping[str, Any]:
        return azure
