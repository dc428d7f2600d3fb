"""The laws of an L2 adapter, as tests.  A distribution runs them with three lines:

    class TestAcme(L2AdapterSuite):
        @pytest.fixture
        def opened(self, context):
            return open_acme(AcmeSettings(), context)

Tests of optional behaviour run where the adapter declares the capability.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator

import pytest

from lmcache_core.contracts.completion import JobId
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import Capability, L2Adapter, StoreItem
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_core.testing.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_core.testing.lent_memory import SPACE, LentMemory, adapter_context, object_key, payload_of

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
PAYLOAD_BYTES = 10_000  # not a multiple of a page or a sector
OBJECT_BYTES = HEADER_BYTES + PAYLOAD_BYTES


class L2AdapterSuite:
    """Override `opened`."""

    @pytest.fixture
    def memory(self) -> LentMemory:
        return LentMemory()

    @pytest.fixture
    def context(self, memory: LentMemory) -> AdapterContext:
        return adapter_context(memory)

    @pytest.fixture
    def opened(self, context: AdapterContext) -> L2Adapter:
        """The adapter under test, empty.  The suite closes it."""
        raise NotImplementedError("override the fixture `opened`")

    @pytest.fixture
    def adapter(self, opened: L2Adapter) -> Iterator[L2Adapter]:
        yield opened
        opened.close(WAIT_SECONDS)

    @pytest.fixture
    def driver(self, adapter: L2Adapter) -> L2Driver:
        return L2Driver(adapter)

    # Store, lookup, load.

    def test_what_was_stored_is_found_and_comes_back_byte_for_byte(self, driver: L2Driver, memory: LentMemory) -> None:
        keys = put(driver, memory, 5)
        assert driver.has(*keys) == (DONE,) * 5
        loaded = [memory.lend(OBJECT_BYTES) for _ in keys]
        assert driver.load(*zip(keys, loaded, strict=True)) == (DONE,) * 5
        for number, (key, buffer) in enumerate(zip(keys, loaded, strict=True)):
            assert check(buffer.view, key).outcome is DONE
            assert buffer.view[HEADER_BYTES:] == payload_of(number, PAYLOAD_BYTES)

    def test_what_was_not_stored_is_missing(self, driver: L2Driver, memory: LentMemory) -> None:
        assert driver.has(object_key(1)) == (MISSING,)
        assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (MISSING,)

    def test_outcomes_stand_in_the_order_of_the_keys(self, driver: L2Driver, memory: LentMemory) -> None:
        keys = put(driver, memory, 20)
        mixed = [object_key(100 + number) if number % 3 else keys[number] for number in range(20)]
        expected = tuple(MISSING if number % 3 else DONE for number in range(20))
        assert driver.has(*mixed) == expected
        assert driver.load(*((key, memory.lend(OBJECT_BYTES)) for key in mixed)) == expected

    def test_storing_again_changes_nothing(self, driver: L2Driver, memory: LentMemory) -> None:
        (key,) = put(driver, memory, 1)
        usage = driver.adapter.usage()
        assert driver.store((key, memory.sealed(key, payload_of(0, PAYLOAD_BYTES)))) == (DONE,)
        assert driver.adapter.usage() == usage

    def test_one_hash_in_two_spaces_is_two_objects(self, driver: L2Driver, memory: LentMemory) -> None:
        (key,) = put(driver, memory, 1)
        for field, value in {"cache_salt": "", "model_name": "../other", "kv_rank": 7, "layout": bytes(16)}.items():
            assert driver.has(ObjectKey(with_field(SPACE, field, value), key.chunk_hash)) == (MISSING,)

    def test_a_buffer_of_another_length_is_never_filled_with_success(
        self, driver: L2Driver, memory: LentMemory
    ) -> None:
        for number, length in enumerate((OBJECT_BYTES - 1, OBJECT_BYTES + 1, HEADER_BYTES)):
            key = object_key(number)
            assert driver.store((key, memory.sealed(key, payload_of(number, PAYLOAD_BYTES)))) == (DONE,)
            assert driver.load((key, memory.lend(length))) == (Outcome.DAMAGED,)

    # Jobs and completions.

    def test_a_batch_of_nothing_is_answered(self, driver: L2Driver) -> None:
        assert driver.store() == driver.load() == driver.lookup() == driver.delete() == ()

    def test_each_job_is_answered_once_and_then_the_descriptor_is_quiet(
        self, driver: L2Driver, memory: LentMemory
    ) -> None:
        items = [
            [StoreItem(key, memory.sealed(key, b"x" * 100)) for key in map(object_key, (n, n + 1))] for n in range(16)
        ]
        jobs: list[JobId] = []

        def submit(batch: list[StoreItem]) -> None:
            jobs.append(driver.adapter.submit_store(batch))
            jobs.append(driver.adapter.submit_lookup([item.key for item in batch]))

        threads = [threading.Thread(target=submit, args=(batch,)) for batch in items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job in jobs:
            driver.finish(job)
        assert len(set(jobs)) == len(jobs)
        assert driver.answers() == dict.fromkeys(jobs, 1)
        poll = select.poll()
        poll.register(driver.adapter.completions().fileno(), select.POLLIN)
        assert poll.poll(0) == []

    # Deletion and pins.

    def test_what_was_deleted_is_gone(self, driver: L2Driver, memory: LentMemory) -> None:
        require(driver, Capability.DELETE)
        keys = put(driver, memory, 3)
        assert driver.delete(keys[1], object_key(99)) == (DONE, MISSING)
        assert driver.has(*keys) == (DONE, MISSING, DONE)
        assert driver.store((keys[1], memory.sealed(keys[1], payload_of(1, PAYLOAD_BYTES)))) == (DONE,)
        assert driver.has(keys[1]) == (DONE,)

    def test_a_pinned_object_stays_until_its_last_pin_is_gone(self, driver: L2Driver, memory: LentMemory) -> None:
        require(driver, Capability.DELETE)
        (key,) = put(driver, memory, 1)
        assert driver.lookup(key) == driver.lookup(key) == (DONE,)
        for _ in range(2):
            assert driver.delete(key) == (REJECTED,)
            driver.adapter.unpin([key])
        assert driver.delete(key) == (DONE,)

    def test_a_lookup_pins_only_what_it_found_and_unpinning_the_rest_is_ignored(
        self, driver: L2Driver, memory: LentMemory
    ) -> None:
        require(driver, Capability.DELETE)
        absent = object_key(0)
        assert driver.lookup(absent) == (MISSING,)
        driver.adapter.unpin([absent, absent])
        (key,) = put(driver, memory, 1)
        assert driver.lookup(key) == (DONE,)
        assert driver.delete(key) == (REJECTED,)
        driver.adapter.unpin([key])
        assert driver.delete(key) == (DONE,)

    # What core rejected.

    @pytest.mark.parametrize("outcome", [Outcome.DAMAGED, Outcome.FOREIGN])
    def test_what_was_rejected_is_not_offered_again(
        self, driver: L2Driver, memory: LentMemory, outcome: Outcome
    ) -> None:
        rejected, other = put(driver, memory, 2)
        driver.adapter.reject(rejected, outcome)
        assert driver.has(rejected, other) == (MISSING, DONE)
        driver.adapter.reject(rejected, outcome)
        assert driver.has(rejected, other) == (MISSING, DONE)

    def test_a_damaged_object_can_be_stored_anew(self, driver: L2Driver, memory: LentMemory) -> None:
        require(driver, Capability.DELETE)
        (key,) = put(driver, memory, 1)
        driver.adapter.reject(key, Outcome.DAMAGED)
        buffer = memory.sealed(key, payload_of(0, PAYLOAD_BYTES))
        end = time.monotonic() + WAIT_SECONDS  # it may be rejected while the damaged one is being moved aside
        while driver.store((key, buffer)) != (DONE,):
            assert time.monotonic() < end
        assert driver.has(key) == (DONE,)

    # Accounting.

    def test_usage_is_exact(self, driver: L2Driver, memory: LentMemory) -> None:
        require(driver, Capability.USAGE | Capability.DELETE)
        assert counted(driver) == (0, 0)
        keys = put(driver, memory, 4)
        assert counted(driver) == (4, 4 * OBJECT_BYTES)
        driver.delete(*keys[:3])
        assert counted(driver) == (1, OBJECT_BYTES)

    @pytest.mark.parametrize("limit", [1, 3, 7, 100])
    def test_a_listing_names_every_object_once(self, driver: L2Driver, memory: LentMemory, limit: int) -> None:
        require(driver, Capability.LIST)
        keys = put(driver, memory, 7)
        other = ObjectKey(with_field(SPACE, "cache_salt", "another tenant"), keys[0].chunk_hash)
        assert driver.store((other, memory.sealed(other, b"payload"))) == (DONE,)
        listed = driver.keys(limit)
        assert sorted(key.canonical for key in listed) == sorted(key.canonical for key in [*keys, other])

    def test_a_listing_survives_changes_between_two_pages(self, driver: L2Driver, memory: LentMemory) -> None:
        require(driver, Capability.LIST | Capability.DELETE)
        stay = put(driver, memory, 12)
        first = driver.adapter.list_keys(None, 5)
        assert len(first.keys) == 5
        assert first.cursor is not None
        driver.delete(*first.keys)
        put(driver, memory, 6, first=50)
        listed = [*first.keys, *driver.keys(5, first.cursor)]
        assert set(stay) <= set(listed)
        assert len(listed) == len(set(listed))

    # The end.

    def test_after_close_everything_fails_and_is_still_answered(self, driver: L2Driver, memory: LentMemory) -> None:
        (key,) = put(driver, memory, 1)
        driver.adapter.close(WAIT_SECONDS)
        driver.adapter.close(WAIT_SECONDS)
        buffer = memory.sealed(key, b"payload")
        assert driver.store((key, buffer)) == driver.load((key, buffer)) == (FAILED,)
        assert driver.lookup(key) == driver.delete(key) == (FAILED,)
        driver.adapter.unpin([key])
        driver.adapter.reject(key, Outcome.DAMAGED)

    def test_close_finishes_what_was_submitted(self, driver: L2Driver, memory: LentMemory) -> None:
        items = [StoreItem(key, memory.sealed(key, b"payload")) for key in map(object_key, range(50))]
        job = driver.adapter.submit_store(items)
        driver.adapter.close(WAIT_SECONDS)
        done = driver.done(job)
        assert done.outcomes == (DONE,) * 50
        assert done.released


def put(driver: L2Driver, memory: LentMemory, count: int, first: int = 0) -> list[ObjectKey]:
    """Store `count` objects."""
    keys = [object_key(number) for number in range(first, first + count)]
    buffers = [memory.sealed(key, payload_of(number, PAYLOAD_BYTES)) for number, key in enumerate(keys, first)]
    assert driver.store(*zip(keys, buffers, strict=True)) == (DONE,) * count
    return keys


def require(driver: L2Driver, capability: Capability) -> None:
    if capability not in driver.adapter.capabilities:
        pytest.skip(f"the adapter does not declare {capability}")


def counted(driver: L2Driver) -> tuple[int, int]:
    usage = driver.adapter.usage()
    assert usage is not None
    return usage.objects, usage.used_bytes


def with_field(space: KeySpace, field: str, value: object) -> KeySpace:
    """The space with one field changed."""
    names = ("model_name", "kv_rank", "object_group", "cache_salt", "chunk_tokens", "chain", "layout")
    values = {name: getattr(space, name) for name in names}
    return KeySpace(**{**values, field: value})
