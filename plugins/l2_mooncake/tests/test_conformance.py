"""The `mooncake_store` adapter keeps every requirement, against a real master and a member in another process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

import pytest

from lmcache_core import ObjectKey
from lmcache_devkit import L2AdapterSuite, Media
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.stalling import stall_methods
from lmcache_l2_mooncake.store_client import StoreClient, Transfer
from lmcache_object_remote import object_name
from tests.remote.mooncake_master import MooncakeMaster

LONGEST_SECONDS: Final = 30.0


class MooncakeMedia(Media):
    """Objects of a store, through another member of it."""

    def __init__(self, client: StoreClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix

    def read(self, key: ObjectKey) -> bytes | None:
        name = object_name(self._prefix, key)
        size = self._client.size(name)
        if size < 0:
            return None
        data = ctypes.create_string_buffer(size)
        assert self._client.get([Transfer(name, ctypes.addressof(data), size)]) == [size]
        return data.raw

    def write(self, key: ObjectKey, data: bytes) -> None:
        self.remove(key)
        held = ctypes.create_string_buffer(data, max(len(data), 1))
        name = object_name(self._prefix, key)
        assert self._client.put([Transfer(name, ctypes.addressof(held), len(data))]) == [0]

    def remove(self, key: ObjectKey) -> None:
        self._client.remove([object_name(self._prefix, key)])

    def truncate(self, key: ObjectKey, length: int) -> None:
        if length == 0:
            pytest.skip("Mooncake keeps no empty objects")
        super().truncate(key, length)


class MooncakeSuite(L2Fixtures):
    offer = "mooncake_store"
    payload_bytes_max = 8 * 2**20 + 1
    open_close_rounds = 3
    more: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def settings(self, master: MooncakeMaster) -> Mapping[str, Any]:
        own = {"local_hostname": "127.0.0.1", "master_server_addr": master.address, "global_segment_size": 0}
        return own | {name: value.format(master=master) for name, value in self.more.items()}


class TestInShort(MooncakeSuite):
    """What `make test` has time for: to join and to leave takes a second and more, which the whole suite does a hundred
    times."""

    test_declared = L2AdapterSuite.test_offer_and_adapter_declare_the_same_capabilities
    test_round_trip = L2AdapterSuite.test_what_was_stored_is_found_and_comes_back_byte_for_byte
    test_missing = L2AdapterSuite.test_what_was_not_stored_is_missing
    test_other_length = L2AdapterSuite.test_a_buffer_of_another_length_is_never_filled_with_success
    test_batch = L2AdapterSuite.test_a_batch_of_a_thousand_is_answered_in_full
    test_deleted = L2AdapterSuite.test_what_was_deleted_is_gone
    test_damaged = L2AdapterSuite.test_a_damaged_object_can_be_stored_anew
    test_shared = L2AdapterSuite.test_two_that_are_open_at_once_see_what_the_other_stored


@pytest.mark.slow
# Another process keeps these objects, which happens to outlive the adapter.  That is not a promise: memory is all there is.
@pytest.mark.filterwarnings("ignore:.*does not declare DURABLE:lmcache_devkit.UndeclaredCapability")
class TestAll(MooncakeSuite, L2AdapterSuite):
    more: ClassVar[Mapping[str, Any]] = {"master_metrics_url": "{master.metrics_url}", "key_prefix": "käse/"}

    @pytest.fixture
    def media(self, behind: StoreClient) -> Media:
        return MooncakeMedia(behind, "käse/")

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, StoreClient, ("put", "get", "exist", "remove"))
