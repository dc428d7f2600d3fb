"""A prefix is recorded once, and every prompt comes back whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.trace.hash_tree import HASH_BYTES, HashReader, HashWriter
from plugins.observability.tests.trace.stand_ins import chain

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=30)


@given(PROMPTS, st.integers(1, 12))
def test_prompts_come_back_however_little_is_remembered(prompts: list[list[int]], limit: int) -> None:
    writer, reader = HashWriter(limit), HashReader()
    for prompt in prompts:
        hashes = chain(prompt)
        known, more = writer.tell(hashes)
        assert b"".join(reader.hear(known, more)) == hashes


def test_a_prefix_is_recorded_once() -> None:
    writer = HashWriter(100)
    assert len(writer.tell(chain([1, 2, 3]))[1]) == 3 * HASH_BYTES
    assert writer.tell(chain([1, 2, 3])) == (3, b"")
    assert writer.tell(chain([1, 2])) == (2, b"")
    known, more = writer.tell(chain([1, 2, 9, 9]))
    assert (known, len(more)) == (2, 2 * HASH_BYTES)
    assert writer.tell(b"") == (0, b"")


@pytest.mark.parametrize(("known", "more"), [(1, b""), (-1, b""), (0, b"short")])
def test_what_was_never_recorded_is_refused(known: int, more: bytes) -> None:
    with pytest.raises(ValueError, match="hash number"):
        HashReader().hear(known, more)
