"""Which tokens each selector chooses, and what is said of one that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmcache_blend_select import (
    Facts,
    Need,
    Run,
    Segment,
    Selector,
    SelectorError,
    available,
    budget,
    runs_of,
    select,
    selector,
)

SEGMENTS = (Segment(10, 30, 0), Segment(30, 33, 90), Segment(50, 90, 7))
TOKENS = 63
NAN = float("nan")


def chosen_by(name: str, facts: Facts) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in select(selector(name), facts)]


class TestOurs:
    def test_all_of_them_are_there(self) -> None:
        assert set(available()) >= {"none", "full", "lego_link", "block_start", "cacheblend", "question"}

    def test_none_and_full_have_a_ratio_of_their_own(self) -> None:
        for name, ratio, runs in (("none", 0.0, []), ("full", 1.0, [(10, 33), (50, 90)])):
            limit = budget(selector(name), 0.15, TOKENS)
            assert limit == ratio * TOKENS
            assert chosen_by(name, Facts(SEGMENTS, limit, 16)) == runs
        assert budget(selector("cacheblend"), 0.15, TOKENS) == 9

    def test_lego_link_takes_the_first_sixteen_of_each_segment(self) -> None:
        assert chosen_by("lego_link", Facts(SEGMENTS, 40, 4)) == [(10, 26), (30, 33), (50, 66)]

    def test_block_start_takes_as_many_as_a_block_has(self) -> None:
        assert chosen_by("block_start", Facts(SEGMENTS, 40, 4)) == [(10, 14), (30, 33), (50, 54)]

    def test_a_budget_that_is_too_small_is_shared(self) -> None:
        assert chosen_by("lego_link", Facts(SEGMENTS, 14, 16)) == [(10, 16), (30, 33), (50, 55)]
        assert chosen_by("lego_link", Facts(SEGMENTS, 2, 16)) == [(10, 11), (30, 31)]

    def test_cacheblend_takes_the_largest_deviation_and_of_equal_ones_the_first(self) -> None:
        deviation = np.zeros((1, TOKENS), np.float32)
        deviation[0, [0, 22, 23, 24, 62]] = 5, 9, 9, np.inf, 1
        assert chosen_by("cacheblend", Facts(SEGMENTS, 3, 16, deviation)) == [(32, 33), (50, 52)]
        assert chosen_by("cacheblend", Facts(SEGMENTS, 6, 16, deviation)) == [(10, 12), (32, 33), (50, 52), (89, 90)]

    def test_what_a_later_check_layer_computed_comes_first(self) -> None:
        deviation = np.array([[9, 8, 7, 6, NAN], [NAN, NAN, 1, 2, NAN]], np.float32)
        facts = Facts((Segment(0, 5, 3),), 1, 16, deviation)
        runs = [chosen_by("cacheblend", replace(facts, budget=count)) for count in range(1, 6)]
        assert runs == [[(3, 4)], [(2, 4)], [(0, 1), (2, 4)], [(0, 4)], [(0, 5)]]

    def test_question_weighs_deviation_by_attention(self) -> None:
        deviation = np.array([[4, 3, 2, 9]], np.float32)
        attention = np.array([0.1, 0.5, 0.5, 0], np.float32)
        facts = Facts((Segment(0, 4, 3),), 2, 16, deviation, attention)
        assert chosen_by("question", facts) == [(1, 3)]
        assert selector("question").needs == {Need.DEVIATION, Need.ATTENTION}


class TestChoices:
    @pytest.mark.parametrize(
        ("runs", "reason"),
        [
            ([(10, 14)], "chose 4 tokens; its budget was 3"),
            ([(9, 11)], "token 9, which is in no segment"),
            ([(89, 91)], "token 90, which is in no segment"),
            ([(32, 34)], "token 33, which is in no segment"),
            ([(12, 13), (10, 11)], "tokens 10 to 11 behind .*not ascending runs"),
            ([(10, 12), (11, 12)], "tokens 11 to 12 behind .*not ascending runs"),
            ([(10, 10)], "tokens 10 to 10 behind .*not ascending runs"),
            ([(-1, 0)], "token -1, which is in no segment"),
        ],
    )
    def test_a_choice_that_may_not_be_made_is_refused(self, runs: Sequence[Any], reason: str) -> None:
        with pytest.raises(SelectorError, match=reason):
            select(Selector(lambda facts: runs), Facts(SEGMENTS, 3, 16))

    def test_runs_that_adjoin_are_one(self) -> None:
        pieces = Selector(lambda facts: [Run(10, 12), Run(12, 13), Run(32, 33)])
        assert select(pieces, Facts(SEGMENTS, 4, 16)) == (Run(10, 13), Run(32, 33))
        assert runs_of([1, 2, 5, 7, 8]) == (Run(1, 3), Run(5, 6), Run(7, 9))
        assert runs_of([]) == ()

    def test_a_selector_without_what_it_needs(self) -> None:
        with pytest.raises(SelectorError, match="needs attention and deviation, which the facts have not"):
            select(selector("question"), Facts(SEGMENTS, 3, 16))

    @pytest.mark.parametrize("ratio", [-0.1, 1.5, NAN])
    def test_a_ratio_is_a_share(self, ratio: float) -> None:
        with pytest.raises(ValueError, match="it is a share of all tokens"):
            Selector(lambda facts: (), ratio=ratio)

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"segments": (Segment(5, 5, 0),)}, "is empty"),
            ({"segments": (Segment(5, 8, 0), Segment(7, 9, 0))}, "begins before token 8"),
            ({"segments": (Segment(5, 8, -1),)}, "comes from before a prompt"),
            ({"budget": -1}, "a budget of -1"),
            ({"block_tokens": 0}, "blocks of 0 tokens"),
            ({"deviation": np.zeros((1, 62))}, r"deviation of the shape \(1, 62\) for 63 tokens"),
            ({"deviation": np.zeros((0, 63))}, r"deviation of the shape \(0, 63\)"),
            ({"deviation": np.zeros(63)}, r"deviation of the shape \(63,\)"),
            ({"attention": np.zeros(64)}, r"attention of the shape \(64,\)"),
        ],
    )
    def test_facts_that_contradict_each_other(self, wrong: dict[str, Any], reason: str) -> None:
        arguments: dict[str, Any] = {"segments": SEGMENTS, "budget": 3, "block_tokens": 16}
        with pytest.raises(ValueError, match=reason):
            Facts(**{**arguments, **wrong})

    def test_facts_are_a_copy_that_cannot_be_written(self) -> None:
        deviation = np.zeros((1, TOKENS), np.float32)
        facts = Facts(SEGMENTS, 3, 16, deviation)
        deviation[0, 0] = 1
        assert facts.deviation is not None
        assert not facts.deviation.any()
        with pytest.raises(ValueError, match="read-only"):
            facts.deviation[0, 0] = 1


THIRD_PARTY = """
from lmcache_blend_select import Run, Selector
LAST = Selector(lambda facts: [Run(s.end - 1, s.end) for s in facts.segments][:facts.budget])
WRONG = 7
"""


def install(site: Path, distribution: str, entries: str) -> None:
    """As a wheel would."""
    (site / "third_party_selector.py").write_text(THIRD_PARTY)
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmcache.blend_selectors.v1]\n{entries}")


class TestNames:
    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(
            SelectorError, match="no blend selector is called 'cacheblend2'; installed: block_start, cache"
        ):
            selector("cacheblend2")

    def test_a_selector_of_another_distribution(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(tmp_path, "acme", "last = third_party_selector:LAST\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert "last" in available()
        assert chosen_by("last", Facts(SEGMENTS, 2, 16)) == [(29, 30), (32, 33)]

    @pytest.mark.parametrize(
        ("entries", "reason"),
        [
            ("last = third_party_selector:MISSING", r"'last' of acme cannot be imported \(AttributeError: "),
            ("last = not_there:LAST", r"'last' of acme cannot be imported \(ModuleNotFoundError: "),
            ("last = third_party_selector:WRONG", "'last' of acme is of the type int, not a Selector"),
        ],
    )
    def test_a_selector_that_cannot_be_used(
        self, entries: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(tmp_path, "acme", entries)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SelectorError, match=reason):
            selector("last")

    def test_a_name_has_one_owner(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(tmp_path, "acme", "none = third_party_selector:LAST")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SelectorError, match="'none' is offered by acme and lmcache-blend-select; uninstall"):
            selector("none")


def test_neither_torch_nor_a_server_is_imported() -> None:
    code = "import sys, lmcache_blend_select as s; s.selector('question'); print({'torch', 'zmq', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
