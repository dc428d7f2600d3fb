"""What a test of an adapter works with: an open adapter, memory to lend, and a key space of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, payload_of
from lmcache_devkit.l2.media import Media
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.offer_under_test import OpenableOffer

PAYLOAD_BYTES: Final = 10_000  # not a multiple of a page or a sector
OBJECT_BYTES: Final = HEADER_BYTES + PAYLOAD_BYTES
BATCH_MAX: Final = 1000


class Stored(NamedTuple):
    """How much more is stored than when the test began."""

    objects: int
    used_bytes: int


class Rig:
    """Keys of a rig are its own, so that it can work on a backend that is in use.  One thread."""

    def __init__(
        self,
        under_test: OpenableOffer,
        memory: BorrowedMemory,
        wait_seconds: float,
        media: Callable[[], Media | None] = lambda: None,
    ) -> None:
        """`media`: asked for when an object is first put where an adapter that is READ_ONLY finds it."""
        token = secrets.token_hex(8)
        self.under_test = under_test
        self.memory = memory
        self.space = KeySpace(
            f"conformance/{token}", 0x01000100, 0, f"tenant {token}", 256, HashChain.BLAKE3, secrets.token_bytes(16)
        )
        self.token = token
        self._wait_seconds = wait_seconds
        self._media = media
        self._drivers: list[L2Driver] = []
        self.unremovable: list[ObjectKey] = []
        """Keys under which the test left something that an adapter must not delete."""
        self.driver = self.open()
        self._before = self.driver.usage()

    # --- the adapter

    @property
    def capabilities(self) -> Capability:
        return self.driver.adapter.capabilities

    def require(self, capability: Capability) -> None:
        """Skip the test where the adapter does not declare all of these."""
        if missing := capability & ~self.capabilities:
            pytest.skip(f"the adapter does not declare {missing.name}")

    @property
    def is_read_only(self) -> bool:
        """Objects come there by other ways: `store` of a driver goes that way, `own_store` is to be refused."""
        return Capability.READ_ONLY in self.capabilities

    def require_stores(self) -> None:
        """Skip the test where it is about how the adapter stores, and the adapter stores nothing."""
        if self.is_read_only:
            pytest.skip("the adapter is READ_ONLY: it stores nothing")

    def require_room(self, wanted_bytes: int) -> None:
        """Skip the test where the adapter says that it has less room."""
        usage = self.driver.usage()
        if usage and usage.capacity_bytes is not None and usage.capacity_bytes - usage.used_bytes < wanted_bytes:
            room = usage.capacity_bytes - usage.used_bytes
            pytest.skip(f"the backend has room for {room} bytes, and this needs {wanted_bytes}")

    def context(self) -> AdapterContext:
        """What an adapter is opened with, as a server that has just started does."""
        return adapter_context(self.memory, name=self.under_test.offer.name)

    def open(self) -> L2Driver:
        """One more adapter on the same backend; the end of the test closes it.  It knows what is there, where it declares
        USAGE: before, it may miss objects that it has not found yet."""
        adapter = self.under_test.open(self.context())
        is_read_only = Capability.READ_ONLY in adapter.capabilities
        driver = L2Driver(adapter, self._wait_seconds, self._place if is_read_only else None)
        self._drivers.append(driver)
        driver.usage()
        return driver

    def reopen(self, memory: BorrowedMemory | None = None) -> L2Driver:
        """Close the adapter and open another in its place, with another memory if one is given."""
        self.driver.close(self._wait_seconds)
        self.memory = memory or self.memory
        self.driver = self.open()
        return self.driver

    def _place(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        media = self._media()
        if media is None:
            pytest.skip(
                "the adapter is READ_ONLY, and the fixture media gives no way to put objects where it finds them"
            )
        media.write(key, bytes(buffer.view))

    # --- objects

    def key(self, number: int, **changed: Any) -> ObjectKey:
        """The key that is called `number` in this test, in a space with these fields changed."""
        space = replace(self.space, **changed) if changed else self.space
        return ObjectKey(space, number.to_bytes(32, "little"))

    def keys(self, count: int, first: int = 0) -> list[ObjectKey]:
        return [self.key(number) for number in range(first, first + count)]

    def whole(self, key: ObjectKey, payload_bytes: int = PAYLOAD_BYTES) -> tuple[ObjectKey, BorrowedBuffer]:
        """The right object of a key that was made here, ready to be stored."""
        number = int.from_bytes(key.chunk_hash, "little")
        return key, self.memory.sealed(key, payload_of(number, payload_bytes))

    def empty(self, key: ObjectKey, payload_bytes: int = PAYLOAD_BYTES) -> tuple[ObjectKey, BorrowedBuffer]:
        """A buffer to load the object into."""
        return key, self.memory.lend(HEADER_BYTES + payload_bytes)

    def put(self, count: int, first: int = 0, payload_bytes: int = PAYLOAD_BYTES) -> list[ObjectKey]:
        """Store the right objects of `count` keys.  Fails where one is not DONE."""
        self.require_room(count * (HEADER_BYTES + payload_bytes))
        keys = self.keys(count, first)
        outcomes = self.driver.store(*(self.whole(key, payload_bytes) for key in keys))
        assert Outcome.REJECTED not in outcomes, (
            f"the backend rejects an object of {HEADER_BYTES + payload_bytes} bytes: give it room for {count} of them, or "
            "say in max_object_bytes how long an object it takes"
        )
        assert outcomes == (Outcome.DONE,) * count
        return keys

    def store_anew(self, key: ObjectKey) -> None:
        """Store the right object of a key whose damaged one was rejected; the adapter may still be moving that aside."""
        item = self.whole(key)
        end = time.monotonic() + self._wait_seconds
        while (outcome := self.driver.store(item)[0]) is not Outcome.DONE:
            assert outcome is Outcome.REJECTED, f"storing anew what was damaged is {outcome}"
            assert time.monotonic() < end, "what was damaged cannot be stored anew"
            time.sleep(0.002)

    def assert_whole(self, *keys: ObjectKey, payload_bytes: int = PAYLOAD_BYTES) -> None:
        """Each of them is there, and byte for byte what `whole` makes."""
        items = [self.empty(key, payload_bytes) for key in keys]
        outcomes = self.driver.load(*items)
        assert len(outcomes) == len(items), f"{len(outcomes)} outcomes for a load of {len(items)} objects"
        bad = {number: outcome.name for number, outcome in enumerate(outcomes) if outcome is not Outcome.DONE}
        assert not bad, (
            f"{len(bad)} of {len(items)} objects of {HEADER_BYTES + payload_bytes} bytes that must be there were not loaded; "
            f"by their place in the load: {dict(list(bad.items())[:5])}"
        )
        for key, buffer in items:
            assert_right(key, buffer)

    def stored(self) -> Stored:
        """Now less at the beginning.  For adapters that declare USAGE."""
        now, before = self.driver.usage(), self._before
        assert now is not None, "USAGE is declared, and usage() is None"
        assert before is not None
        return Stored(now.objects - before.objects, now.used_bytes - before.used_bytes)

    def own(self, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        """Those of this test; a backend in use lists others, too."""
        return [key for key in keys if self.token in key.space.model_name or self.token in key.space.cache_salt]

    # --- the end

    def finish(self) -> list[ObjectKey]:
        """Delete what the test stored and close every adapter.  Returns the keys whose objects stay behind."""
        left: list[ObjectKey] = []
        stored = list({i: key for driver in self._drivers for i, key in driver.stored.items()}.values())
        try:
            left += self._delete(stored) if stored else []
        except Exception:  # noqa: BLE001 - the test itself says what is wrong with the adapter
            left += stored
        faults = []
        for driver in self._drivers:
            try:
                if not driver.closed:
                    driver.close(self._wait_seconds)
            except Exception as error:  # noqa: BLE001 - the others are closed first
                faults.append(error)
        if faults:
            raise faults[0]
        if self.is_read_only:
            return []  # the fixture that has put them there takes them away
        return left + self._delete_rejected() if self.unremovable else left

    def _delete_rejected(self) -> list[ObjectKey]:
        """What an adapter is configured to leave alone, it leaves alone for its life.  The next one may take it away, or may
        see for itself that it is foreign, which is right: then it stays behind, if the backend keeps it at all."""
        adapter = self.open()
        try:
            if Capability.DELETE not in self.capabilities:
                return self.unremovable
            outcomes = adapter.delete(*self.unremovable)
            kept = Capability.DURABLE in self.capabilities
            return [
                key for key, now in zip(self.unremovable, outcomes, strict=True) if kept and now is not Outcome.DONE
            ]
        except Exception:  # noqa: BLE001 - the test itself says what is wrong with the adapter
            return self.unremovable
        finally:
            adapter.close(self._wait_seconds)

    def _delete(self, keys: list[ObjectKey]) -> list[ObjectKey]:
        for driver in self._drivers:
            if not driver.closed:
                driver.adapter.unpin(list(driver.pinned.elements()))
        open_ones = [driver for driver in self._drivers if not driver.closed]
        driver = open_ones[0] if open_ones else self.open()
        left: list[ObjectKey] = []
        for start in range(0, len(keys), BATCH_MAX):
            batch = keys[start : start + BATCH_MAX]
            if Capability.DELETE in driver.adapter.capabilities:
                gone = (Outcome.DONE, Outcome.MISSING)
                left += [key for key, now in zip(batch, driver.delete(*batch), strict=True) if now not in gone]
            else:
                left += [key for key, now in zip(batch, driver.has(*batch), strict=True) if now is Outcome.DONE]
        return left


def assert_right(key: ObjectKey, buffer: BorrowedBuffer) -> None:
    """The buffer holds the whole right object of a key that a rig made.  Says where it differs, not with what."""
    number = int.from_bytes(key.chunk_hash, "little")
    payload = buffer.view[HEADER_BYTES:]
    if payload != payload_of(number, len(payload)):
        wanted = payload_of(number, len(payload))
        at = next(at for at, (found, right) in enumerate(zip(payload, wanted, strict=True)) if found != right)
        raise AssertionError(f"object {number}: the first wrong byte of its payload of {len(payload)} is byte {at}")
    found = check(buffer.view, key)
    assert found.outcome is Outcome.DONE, f"object {number}: {found.reason}"
