"""What holds for SGLang with its own client of the server and with our linker.  A module has fixtures `site` and `truth`."""

from __future__ import annotations

from typing import Final

import pytest

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
HELD_SECONDS: Final = 50.0
"""More than the linker keeps a lookup that was not asked for again."""


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
