"""Serdes that are made for numbers, in an adapter: chunks of one known shape go through them, others are declined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmcache_client.layout import CompositeLayout, ObjectLayout
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import (
    HEADER_BYTES,
    NO_DIGEST,
    ObjectHeader,
    check,
    inspect,
)
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import SPACE
from plugins.serde.tests.chain.heap_case import HeapCase, counters

DONE, FOREIGN, DAMAGED = Outcome.DONE, Outcome.FOREIGN, Outcome.DAMAGED
FAILED, REJECTED, MISSING = Outcome.FAILED, Outcome.REJECTED, Outcome.MISSING
FLOATS = ObjectLayout(2, 2, 16, 32, "float32")


class TestLayouts:
    """Serdes that are made for numbers take chunks of one known shape."""

    key = ObjectKey(replace(SPACE, layout=FLOATS.fingerprint), bytes(32))
    numbers = b"".join(number.to_bytes(2, "little") + b"\0\x3f" for number in range(FLOATS.payload_bytes // 4))

    def test_an_unknown_layout_is_declined(self, case: HeapCase) -> None:
        driver = case.through("half", "deflate")
        assert driver.store(case.whole(self.key, self.numbers)) == (REJECTED,)
        assert driver.load(case.empty(self.key, len(self.numbers))) == (FAILED,)
        assert counters(driver).refusals() == {"unknown_layout": 2}

    def test_one_of_several_shapes_is_declined(self, case: HeapCase) -> None:
        layout = CompositeLayout((FLOATS, FLOATS))
        case.layouts.learn(layout)
        key = ObjectKey(replace(SPACE, layout=layout.fingerprint), bytes(32))
        assert case.through("half").store(case.whole(key, 2 * self.numbers)) == (REJECTED,)
        assert case.through("deflate").store(case.whole(key, 2 * self.numbers)) == (DONE,)

    def test_a_registered_one_goes_through_and_the_loss_is_declared(self, case: HeapCase) -> None:
        case.layouts.learn(FLOATS)
        driver = case.through("half", "deflate")
        assert driver.store(case.whole(self.key, self.numbers)) == (DONE,)
        header = inspect(case.objects[self.key.object_id][1][:HEADER_BYTES])
        assert isinstance(header, ObjectHeader)
        assert header.payload_digest == NO_DIGEST
        _, buffer = item = case.empty(self.key, len(self.numbers))
        assert driver.load(item) == (DONE,)
        assert check(buffer.view, self.key).outcome is DONE
        assert bytes(buffer.view[HEADER_BYTES:]) != self.numbers

    def test_a_lossy_chain_stores_nothing_that_is_damaged_already(self, case: HeapCase) -> None:
        case.layouts.learn(FLOATS)
        driver = case.through("half")
        _, buffer = item = case.whole(self.key, self.numbers)
        buffer.view[HEADER_BYTES + 9] ^= 1
        assert driver.store(item) == (DAMAGED,)
        assert driver.has(self.key) == (MISSING,)

    def test_a_layout_that_cannot_be_stored_is_logged_when_it_is_registered(
        self, case: HeapCase, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = case.through("half", memory_bytes=64 * 2**10)
        case.layouts.learn(FLOATS)
        assert caplog.text == ""
        case.layouts.learn(ObjectLayout(2, 2, 256, 32, "float32"))
        assert "raise serde_memory_gb" in caplog.text
        caplog.clear()
        case.layouts.learn(ObjectLayout(2, 2, 16, 32, "bfloat16"))
        assert "serde 'half' has no bound" in caplog.text
        caplog.clear()
        driver.close(5.0)
        case.layouts.learn(ObjectLayout(2, 2, 512, 32, "float32"))
        assert caplog.text == "", "an adapter that is closed still listens"
