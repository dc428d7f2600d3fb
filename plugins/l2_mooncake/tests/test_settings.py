"""What the distribution offers, which settings make sense, and what Mooncake receives of them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_core import Capability, ConfigError, L2Adapter, MemoryRegion, ResourceError
from lmcache_l2_mooncake import store_client
from lmcache_l2_mooncake.adapter import CAPABILITIES, MooncakeAdapter
from lmcache_l2_mooncake.config import MooncakeSettings
from lmcache_l2_mooncake.memory_check import check_for_rdma
from lmcache_l2_mooncake.plugin import lmcache_l2_adapters
from lmcache_l2_mooncake.store_client import Span, StoreClient
from plugins.l2_mooncake.tests.fake_client import OldStore

SEED = {
    "num_workers": 4, "local_hostname": "node01", "metadata_server": "http://localhost:8080/metadata",
    "master_server_addr": "localhost:50051", "protocol": "tcp", "local_buffer_size": "3221225472",
    "global_segment_size": "3221225472",
}  # fmt: skip


def test_the_entry_point_leads_to_one_offer_whose_parts_exist_and_agree() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="mooncake_store")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert offer.name == "mooncake_store"
    assert offer.settings is not None
    assert resolve(offer.settings) is MooncakeSettings
    assert callable(resolve(offer.open))
    assert offer.capabilities == CAPABILITIES
    assert offer.optional_capabilities == Capability.LIST
    assert issubclass(MooncakeAdapter, L2Adapter)


def test_listing_imports_no_settings_no_adapter_and_no_library() -> None:
    code = (
        "import sys, lmcache_l2_mooncake.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'mooncake', 'lmcache_l2_mooncake.adapter'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_numbers_may_be_texts_and_every_other_field_is_handed_on() -> None:
    settings = MooncakeSettings.model_validate(
        SEED | {"tenant_id": "blue", "enable_ssd_offload": True, "client_http_port": 9301, "nothing": None}
    )
    assert settings.for_setup() == {
        "local_hostname": "node01", "metadata_server": "http://localhost:8080/metadata",
        "master_server_addr": "localhost:50051", "protocol": "tcp", "rdma_devices": "",
        "local_buffer_size": "3221225472", "global_segment_size": "3221225472", "tenant_id": "blue",
        "enable_ssd_offload": "true", "client_http_port": "9301",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_workers", 0), ("num_workers", 257), ("num_workers", "many"), ("local_hostname", ""), ("local_hostname", 7),
        ("global_segment_size", -1), ("global_segment_size", "3GB"), ("local_buffer_size", 1.5), ("protocol", ""),
        ("master_metrics_url", "localhost:9003"), ("master_metrics_url", "http://h:1/metrics"), ("key_prefix", "a\nb"),
        ("key_prefix", "x" * 257), ("replicas", {"num": 2}), ("replicas", [1]),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        MooncakeSettings.model_validate({"local_hostname": "here", field: value})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in MooncakeSettings.model_fields.values())


def test_an_old_release_is_given_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    store = OldStore()
    monkeypatch.setattr(store_client, "store_class", lambda: lambda: store)
    setup = MooncakeSettings.model_validate(SEED).for_setup()
    client = StoreClient.open(setup, (), needs_memory=False, logger=logging.getLogger("lmcache.tests"))
    assert store.given == (
        "node01", "http://localhost:8080/metadata", 3221225472, 3221225472, "tcp", "", "localhost:50051"
    )  # fmt: skip
    assert client.remove(["a", "b"]) == [0, 0]
    assert store.removed == ["a", "b"]
    assert client.health() is None
    assert not client.reads_ranges
    with pytest.raises(ResourceError, match="does not take the fields tenant_id"):
        StoreClient.open(
            {**setup, "tenant_id": "blue"}, (), needs_memory=False, logger=logging.getLogger("lmcache.tests")
        )


@pytest.mark.parametrize("needs_memory", [True, False])
def test_memory_that_cannot_be_registered_stops_rdma_and_not_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, needs_memory: bool
) -> None:
    class Picky(OldStore):
        def register_buffer(self, address: int, length: int) -> int:
            return -600

    monkeypatch.setattr(store_client, "store_class", lambda: Picky)
    setup = MooncakeSettings.model_validate(SEED).for_setup()
    logger = logging.getLogger("lmcache.tests")
    if needs_memory:
        with pytest.raises(ResourceError, match=r"did not register 10 bytes.*INVALID_PARAMS.*--no-l1-use-lazy"):
            StoreClient.open(setup, [Span(1, 10)], needs_memory=True, logger=logger)
    else:
        StoreClient.open(setup, [Span(1, 10)], needs_memory=False, logger=logger)
        assert "did not register 10 bytes" in caplog.text


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(ResourceError, match="pip install mooncake-transfer-engine"):
        store_client.store_class()


class TestRdma:
    """What is asked of L1 before devices are given its memory."""

    @pytest.fixture
    def devices(self, tmp_path: Path) -> Path:
        (tmp_path / "mlx5_0").mkdir()
        return tmp_path

    def test_memory_that_is_there_will_do(self, devices: Path) -> None:
        check_for_rdma("mooncake_store", [region()], devices)

    @pytest.mark.parametrize(
        ("regions", "reason"),
        [
            ([], "it has 0 regions"), ([(4096, 10), (8192, 10)], "it has 2 regions"),
            ([(0, 10)], "its address is 0x0"), ([(4096, 0)], "its length 0"),
        ],
    )  # fmt: skip
    def test_it_must_be_one_stretch(self, devices: Path, regions: list[tuple[int, int]], reason: str) -> None:
        with pytest.raises(ConfigError, match=f"protocol 'rdma'.*{reason}.*--no-l1-use-lazy"):
            check_for_rdma("mooncake_store", [region(*each) for each in regions], devices)

    def test_it_must_be_allocated(self, devices: Path) -> None:
        lazy = os.memfd_create("lazy")
        try:
            os.ftruncate(lazy, 1 << 20)
            shared = MemoryRegion(4096, 1 << 20, memoryview(b""), descriptor=lazy, name="segment")
            with pytest.raises(ConfigError, match=r"only 0 of its 1048576 bytes are allocated.*--no-l1-use-lazy"):
                check_for_rdma("mooncake_store", [shared], devices)
            os.posix_fallocate(lazy, 0, 1 << 20)
            check_for_rdma("mooncake_store", [shared], devices)
            on_disk = MemoryRegion(4096, 1 << 20, memoryview(b""), descriptor=lazy, name=None)
            with pytest.raises(ConfigError, match="it lies in a file"):
                check_for_rdma("mooncake_store", [on_disk], devices)
        finally:
            os.close(lazy)

    def test_a_machine_without_a_device_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"needs an RDMA device.*would use TCP"):
            check_for_rdma("mooncake_store", [region()], tmp_path / "none")


def region(address: int = 4096, length: int = 10) -> MemoryRegion:
    return MemoryRegion(address, length, memoryview(b""))


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
