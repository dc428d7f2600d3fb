"""From samples to medians, ratios of pairs, verdicts and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.catalogue import FIGURES, TABLES, Aim, Figure, Table
from benchmarks.report import PAGE, RUN, SOAK, replaced, run_text, write
from benchmarks.results import Results, Spread, load, newest
from benchmarks.soak.report import load as load_soak
from benchmarks.soak.report import text
from benchmarks.tables import table

CASE = Figure("x_ms", "a case", "ms", 1, aims={"native": Aim(0.5, "plus"), "pure": Aim(3.0)})
SHOWN = Table("x", "X", "says", (CASE, Figure("y_s", "not measured", "s")))


def results(what: str = "all") -> Results:
    found = Results(what=what, started_at="2026-01-02T03:04:05Z", machine={"cores": "2"}, subjects={"pure": "ours"})
    for number, (echo, native, pure, public) in enumerate([(1, 2, 4, 8), (2, 1, 2, 16), (1, 3, 3, 6)]):
        found.add("echo", number, {"x_ms": echo})
        found.add("native", number, {"x_ms": native})
        found.add("pure", number, {"x_ms": pure})
        found.add("public", number, {"x_ms": public})
    return found


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert results().spread("x_ms", "native") == Spread(2, 1, 3)
    assert results().spread("x_ms", "absent") is None
    assert results().spread("no figure", "native") is None


def test_ratios_are_of_pairs_and_not_of_medians() -> None:
    assert results().ratios("x_ms", "native", "public") == Spread(0.25, 0.0625, 0.5)


def test_a_round_that_one_subject_failed_has_no_ratio() -> None:
    found = results()
    del found.samples["x_ms"]["public"]["0"]
    assert found.ratios("x_ms", "native", "public") == Spread(0.28125, 0.0625, 0.5)


def test_a_table_has_a_column_per_subject_and_says_what_is_not_reached() -> None:
    heading, _, row = table(results(), SHOWN).splitlines()
    assert heading == "| figure | echo | native | pure | public | native / public | aim |"
    spreads = "1.0 (1.0 to 2.0) | 2.0 (1.0 to 3.0) | 3.0 (2.0 to 4.0) | 8.0 (6.0 to 16.0) | 0.25 (0.06 to 0.50)"
    assert row == f"| a case, ms | {spreads} | native 1.5, not reached; pure 3.0 |"


def test_a_table_without_figures_is_empty() -> None:
    assert table(Results(what="all", started_at=""), SHOWN) == ""


@pytest.mark.parametrize(
    ("aim", "echo", "value"),
    [
        (Aim(2.0), None, 2.0),
        (Aim(2.0, "plus"), 1.0, 3.0),
        (Aim(2.0, "times"), 1.5, 3.0),
        (Aim(2.0, "plus"), None, None),
        (Aim(2.0, "times"), None, None),
    ],
)
def test_an_aim_relative_to_the_echo_needs_one(aim: Aim, echo: float | None, value: float | None) -> None:
    assert aim.value(echo) == value


def test_more_can_be_better() -> None:
    figure = Figure("n", "n", "per s", more_is_better=True)
    assert figure.reached(2.0, 1.0)
    assert not figure.reached(0.5, 1.0)
    assert CASE.reached(0.5, 1.0)


def test_a_saved_run_is_found_and_read_back(tmp_path: Path) -> None:
    older = results()
    older.started_at = "2025-01-02T03:04:05Z"
    older.save(tmp_path)
    path = results().save(tmp_path)
    results("lookup").save(tmp_path)
    assert newest("all", tmp_path) == path
    assert load(path).samples == results().samples


def test_every_figure_is_shown_once() -> None:
    names = [figure.name for shown in TABLES for figure in shown.figures]
    assert len(names) == len(set(names)) == len(FIGURES)


def test_a_part_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- run: begin -->\nold\n<!-- run: end -->\nafter\n"
    once = replaced(page, "run", "new \\1")
    assert once == "before\n<!-- run: begin -->\n\nnew \\1\n\n<!-- run: end -->\nafter\n"
    assert replaced(once, "run", "new \\1") == once
    with pytest.raises(ValueError, match="soak: begin"):
        replaced(page, "soak", "text")


@pytest.mark.parametrize(("load_average", "busy"), [("0.3 1.0 2.0", False), ("0.6 0.1 0.1", True)])
def test_a_run_on_a_busy_machine_says_so(load_average: str, busy: bool) -> None:
    found = results()
    found.machine["load"] = load_average
    assert ("busy with other work" in run_text(found)) == busy


@pytest.mark.parametrize(
    ("what", "part", "says"),
    [("all", RUN, lambda path: run_text(load(path))), ("soak", SOAK, lambda path: text(load_soak(path)))],
)
def test_the_page_is_what_the_newest_run_says(what: str, part: str, says: Callable[[Path], str]) -> None:
    if (path := newest(what)) is None:
        pytest.skip("no such run is kept")
    page = PAGE.read_text()
    assert replaced(page, part, says(path)) == page, "run python -m benchmarks.report"


def test_writing_draws_the_pictures_that_the_page_shows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run: begin --><!-- run: end -->")
    found = results()
    found.samples["lookup_64_known_cpu_ms"] = found.samples.pop("x_ms")
    written = write(found, page=page)
    assert [path.name for path in written] == ["page.md", "benchmarks-lookup-light.svg", "benchmarks-lookup-dark.svg"]
    assert plots.shown("Lookups", "benchmarks-lookup") in page.read_text()
    assert [path.read_text().count("</svg>") for path in written[1:]] == [1, 1]
    assert write(found, page=page)[1].read_bytes() == written[1].read_bytes()
