"""A wrong chunk in the cache changes the model's answer: were it otherwise, no comparison here would mean anything.

Damage has to be something that the model can see.  Two chunks of one prompt that change places are not: keys are stored
with their positions in them, and attention does not care in which order it meets them.  So chunks are exchanged between
two prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.prompts import random_prompt
from tests.engine.comparison import assert_cached, assert_right
from tests.engine.reference import Reference
from tests.engine.shared_segment import SharedSegment, Slot
from tests.engine.site import Site

CHUNK_TOKENS = 256
CHUNKS = 4

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.parametrize("site", [CHUNK_TOKENS], indirect=True)]


@pytest.fixture
def segment(site: Site) -> Iterator[SharedSegment]:
    segment = SharedSegment(site.server.status()["l1"]["segment"])
    yield segment
    segment.close()


def store(site: Site, segment: SharedSegment, prompt: list[int]) -> list[Slot]:
    """Have a new prompt of four chunks computed and stored; where its chunks lie in L1, in no order."""
    before = set(site.l2.objects())
    site.engine.ask([prompt])
    site.wait_stored(len(before) + CHUNKS)
    return [segment.find(path) for path in set(site.l2.objects()) - before]


def test_a_chunk_of_another_prompt_is_seen(site: Site, reference: Reference, segment: SharedSegment) -> None:
    prompts = [random_prompt(seed, CHUNKS * CHUNK_TOKENS + 100) for seed in (11, 12)]
    truth = reference.answers(prompts)
    slots = [store(site, segment, prompt)[0] for prompt in prompts]
    intact = [segment.read(slot) for slot in slots]

    for slot, payload in zip(slots, reversed(intact), strict=True):
        segment.write(slot, payload)
    exchanged = site.engine.ask(prompts)
    for slot, payload in zip(slots, intact, strict=True):
        segment.write(slot, payload)
    healed = site.engine.ask(prompts)

    assert_cached(exchanged, CHUNK_TOKENS)
    for answer, right in zip(exchanged, truth, strict=True):
        with pytest.raises(AssertionError, match="instead of"):
            assert_right([answer], [right])
    assert_cached(healed, CHUNK_TOKENS)
    assert_right(healed, truth)


def test_an_overwritten_chunk_is_seen(site: Site, reference: Reference, segment: SharedSegment) -> None:
    prompt = random_prompt(13, CHUNKS * CHUNK_TOKENS + 100)
    truth = reference.answers([prompt])
    slot = store(site, segment, prompt)[0]
    intact = segment.read(slot)

    segment.write(slot, bytes(slot.length))
    overwritten = site.engine.ask([prompt])
    segment.write(slot, intact)
    healed = site.engine.ask([prompt])

    assert_cached(overwritten, CHUNK_TOKENS)
    with pytest.raises(AssertionError, match="instead of"):
        assert_right(overwritten, truth)
    assert_cached(healed, CHUNK_TOKENS)
    assert_right(healed, truth)
