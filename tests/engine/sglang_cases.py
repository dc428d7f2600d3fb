"""What holds for SGLang with its own client of the server and with our linker.  A module has fixtures `site` and `truth`."""

from __future__ import annotations

import random
from typing import Final

import pytest

from demo.answer import TOLERANCE, Answer
from demo.engine_process import MODEL, RequestError
from demo.sglang_process import SGLANG_PYTHON
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_site import SglangSite, prompt
from tests.engine.shared_segment import SharedSegment

MARKS: Final = [
    pytest.mark.sglang,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`"),
    pytest.mark.skipif(not (MODEL / "model.safetensors").exists(), reason="no model here: run `make setup`"),
]
PATIENT: Final = {"heartbeat_seconds": 2, "lookup_timeout_ms": 5_000}
"""Other tests may have the processor, and a lookup that waits for a disk is abandoned after half a second otherwise."""
HELD_SECONDS: Final = 50.0
"""More than the linker keeps a lookup that was not asked for again."""

QUIET_EACH: Final = 250
"""Requests, after which nothing may stay held: so no hold is older than that takes."""


class SglangCases:
    unit_tokens: int
    """Tokens of an object."""

    def test_a_wrong_object_in_the_server_is_seen(self, site: SglangSite, truth: Reference) -> None:
        """Were it otherwise, no comparison here would mean anything."""
        tokens = prompt(40)
        known = set(site.l2.objects())
        site.stored(tokens)
        segment = SharedSegment(site.server.status()["l1"]["segment"])
        slot = segment.find(min(set(site.l2.objects()) - known))
        intact = segment.read(slot)

        segment.write(slot, bytes(slot.length))
        wrong = site.ask_anew(tokens)
        segment.write(slot, intact)
        healed = site.ask_anew(tokens)
        segment.close()

        assert_cached([wrong, healed], self.unit_tokens)
        (right,) = truth.answers([tokens])
        with pytest.raises(AssertionError, match="instead of"):
            assert_right([wrong], [right])
        assert_right([healed], [right])

    def test_tenants_do_not_hit_each_others_prompts(self, site: SglangSite, truth: Reference) -> None:
        tokens = prompt(41)
        tenants: list[tuple[str | None, str | None]] = [
            (None, None),
            ("one", None),
            ("two", None),
            (None, "one"),
            ("one", "x"),
        ]
        answers = []
        for salt, key in tenants:
            for _ in range(2):
                site.engine.flush()
                answers.append(site.engine.ask_for(tokens, cache_salt=salt, extra_key=key))
                site.server.wait_written(60)
        assert_computed(answers[::2])
        assert_cached(answers[1::2], self.unit_tokens)
        assert_right(answers, truth.answers([tokens] * len(answers)))

    def test_an_aborted_request_leaves_nothing_held(self, site: SglangSite, truth: Reference) -> None:
        """Aborts before, within and after lookup, load and computing: which of them, chance decides."""
        tokens = prompt(42)
        site.stored(tokens)
        aborted = 0
        for number in range(24):
            site.engine.flush()
            try:
                site.engine.ask_for(tokens, max_tokens=64, abort_after=0.004 * number)
            except RequestError:
                aborted += 1
        assert aborted
        site.wait_nothing_held(HELD_SECONDS)
        answer = site.ask_anew(tokens)
        assert_cached([answer], self.unit_tokens)
        assert_right([answer], truth.answers([tokens]))


def ask_at_random(site: SglangSite, truth: Reference, requests: int, distinct: int) -> None:
    """Prompts that begin alike, one to four at once, some of them aborted; the engine's own cache is emptied now and then.
    Whatever is answered is right, and nothing stays held."""
    chance = random.Random(7)
    stems = [prompt(110 + number, 600) for number in range(3)]
    prompts = [
        chance.choice(stems)[: chance.randrange(130, 600)] + prompt(120 + number % 4, 70) for number in range(distinct)
    ]
    right = truth.answers(prompts)
    asked = answered = hits = 0
    while asked < requests:
        chosen = [chance.randrange(distinct) for _ in range(chance.choice((1, 1, 2, 4)))]
        abort_after = chance.choice((None, None, 0.05))
        outcomes = site.engine.outcomes([prompts[each] for each in chosen], max_tokens=2, abort_after=abort_after)
        for each, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, Answer):
                answered, hits = answered + 1, hits + (outcome.cached_tokens > 0)
                assert outcome.output == right[each].output[:2]
                assert outcome.drift(right[each]) <= TOLERANCE
            else:
                assert abort_after is not None, outcome
        if chance.random() < 0.3:
            site.engine.flush()
        if asked // QUIET_EACH < (asked := asked + len(chosen)) // QUIET_EACH:
            site.wait_nothing_held(HELD_SECONDS)
    assert answered > requests // 2
    assert hits > answered // 3
    site.wait_nothing_held(HELD_SECONDS)
