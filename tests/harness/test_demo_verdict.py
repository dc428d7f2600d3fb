"""The demo must not say that it went well when it did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.answer import Answer
from demo.demo import EXPECTED_HIT, PROMPT_TOKENS, Phase, print_table, verdict

COMPUTED = Answer(PROMPT_TOKENS, 0, 1.0, (1, 2), ((1, -0.5), (3, -1.5)))
HIT = replace(COMPUTED, cached_tokens=EXPECTED_HIT, seconds_to_first_token=0.1)
PLAIN = Phase("no cache", [COMPUTED], 0)


def test_right_answers_and_hits(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict([PLAIN, Phase("cold", [COMPUTED], 0), Phase("again", [HIT], EXPECTED_HIT)])
    assert "at least 10 times sooner" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("phase", "complaint"),
    [
        (Phase("again", [HIT, replace(HIT, output=(1, 3))], EXPECTED_HIT), "another answer"),
        (Phase("again", [HIT, replace(HIT, cached_tokens=0)], EXPECTED_HIT), "a hit is missing"),
        (Phase("again", [HIT, replace(HIT, cached_tokens=EXPECTED_HIT - 256)], EXPECTED_HIT), "a hit is missing"),
    ],
)
def test_a_fault_in_one_answer_of_one_phase(phase: Phase, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = Phase("no cache", [COMPUTED, COMPUTED], 0)
    print_table([plain, phase])
    assert not verdict([plain, phase])
    printed = capsys.readouterr().out
    assert complaint in printed
    assert "NO" in printed
