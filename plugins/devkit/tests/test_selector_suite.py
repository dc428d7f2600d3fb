"""The requirements can fail: each of these selectors is wrong in one thing, and found by the requirement about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lmcache_blend_select import selector
from lmcache_devkit import SelectorSuite
from plugins.devkit.tests.mutants import blend_selectors

WITHIN = "runs_ascend_within_segments_and_budget"
ALIKE = "equal_facts_give_equal_runs"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted selectors as a distribution of their own: what runs in another process finds them as well."""
    shutil.copy(blend_selectors.__file__, tmp_path / "planted_selectors.py")
    names = [name for name in vars(blend_selectors) if name.isupper()]
    info = tmp_path / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    entries = [f"{name.lower()} = planted_selectors:{name}" for name in names]
    (info / "entry_points.txt").write_text("\n".join(["[lmcache.blend_selectors.v1]", *entries]))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "requirement", "says"),
    [
        ("beyond_its_budget", WITHIN, "its budget was"),
        ("between_segments", WITHIN, "in no segment"),
        ("descending", WITHIN, "not ascending"),
        ("overlapping", WITHIN, "not ascending"),
        ("needs_more_than_it_says", WITHIN, "NoneType"),
        ("expects_a_segment", "where_nothing_is_reused_nothing_is_chosen", "index out of range"),
        ("always_one", "without_a_budget_nothing_is_chosen", "its budget was 0"),
        ("expects_numbers", "any_deviation_and_attention_will_do", "cannot convert float NaN"),
        ("at_random", ALIKE, "from one call to the next"),
        ("remembers", ALIKE, "from one call to the next"),
        ("by_the_hash_of_a_text", "another_process_chooses_alike", "two processes"),
        ("keeps_state_between_lines", "threads_may_share_it", "assert|in no segment|its budget was"),
        ("slow", "a_long_prompt_takes_a_quarter_of_a_second", "s of a processor"),
    ],
)
def test_each_is_found(name: str, requirement: str, says: str, installed: None) -> None:
    suite = type("Suite", (SelectorSuite,), {"selector": name})()
    with pytest.raises(Exception, match=says) as found:
        getattr(suite, f"test_{requirement}")(selector(name))
    assert not isinstance(found.value, AttributeError)


def test_a_right_one_passes(installed: None) -> None:
    suite = type("Suite", (SelectorSuite,), {"selector": "right"})()
    for each in dir(suite):
        if each.startswith("test_"):
            getattr(suite, each)(selector("right"))
