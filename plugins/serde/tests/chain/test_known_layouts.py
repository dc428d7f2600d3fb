"""Layouts are known from the first registration on, and for longer than the worker lives."""

from __future__ import annotations

import pytest

from lmcache_client.layout import ChunkLayout, CompositeLayout, ObjectLayout
from lmcache_core.app import serdes as known_layouts
from lmcache_core.app.serdes import KnownLayouts

FLOATS = ObjectLayout(2, 3, 4, 5, "float32")
BYTES = ObjectLayout(1, 1, 1, 7, "uint8")


def test_a_layout_is_found_by_its_fingerprint_and_its_length() -> None:
    layouts = KnownLayouts()
    assert layouts.elements(FLOATS.fingerprint, FLOATS.payload_bytes) is None
    layouts.learn(FLOATS)
    assert layouts.elements(FLOATS.fingerprint, FLOATS.payload_bytes) == FLOATS
    assert layouts.elements(FLOATS.fingerprint, FLOATS.payload_bytes - 4) is None
    assert layouts.elements(BYTES.fingerprint, BYTES.payload_bytes) is None


def test_of_chunks_of_several_shapes_no_elements_are_known() -> None:
    layouts, composite = KnownLayouts(), CompositeLayout((FLOATS, BYTES))
    layouts.learn(composite)
    assert layouts.elements(composite.fingerprint, composite.payload_bytes) is None
    assert layouts.all() == (composite,)


def test_a_listener_is_notified_until_it_unsubscribes() -> None:
    layouts, heard = KnownLayouts(), list[ChunkLayout]()
    listen = heard.append
    layouts.listen(listen)
    layouts.learn(FLOATS)
    layouts.learn(FLOATS)
    layouts.learn(BYTES)
    layouts.ignore(listen)
    layouts.learn(CompositeLayout((FLOATS, BYTES)))
    assert heard == [FLOATS, BYTES]


def test_those_that_were_registered_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_layouts, "LAYOUTS_MAX", 3)
    layouts = KnownLayouts()
    shapes = [ObjectLayout(1, 1, 1, size, "uint8") for size in range(1, 5)]
    for layout in (*shapes[:3], shapes[0], shapes[3]):
        layouts.learn(layout)
    assert layouts.all() == (shapes[2], shapes[0], shapes[3])
