"""A request runs through few files, and through no more than it did (docs/internals/life-of-a-request.md)."""

from __future__ import annotations

import re

import pytest

from scripts.request_path import ABOUT, AIMS, BUDGETS, ROOT, SECTIONS, Budget, Call, Trace, trace_requests, trace_start

PAGE = ROOT / "docs" / "internals" / "life-of-a-request.md"
WRITE = "python -m scripts.request_path --markdown > docs/internals/life-of-a-request.md"
THREADS_DIFFER = 4
"""Files that a path may reach or not, by what its threads find to do together."""


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {**trace_requests(), "start": trace_start()}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_path_gets_no_longer(traces: dict[str, Trace], name: str) -> None:
    trace, budget = traces[name], BUDGETS[name]
    assert len(trace.files) <= budget.files, "\n".join(trace.files)
    if budget.calls is not None:
        assert len(trace) <= budget.calls, "\n".join(map(str, trace))


@pytest.mark.parametrize("name", BUDGETS)
def test_the_budgets_follow_the_paths_down(traces: dict[str, Trace], name: str) -> None:
    assert max(len(traces[name].files), AIMS[name].files) > 0.9 * BUDGETS[name].files, "lower the budget"


def test_a_trace_has_where_a_request_comes_in_and_where_its_answer_is_made(traces: dict[str, Trace]) -> None:
    lookup, store = traces["lookup"], traces["store"]
    assert Call("core/src/lmcache_core/server/router.py", "Router._receive") in lookup
    assert {call.file for call in lookup} >= {"core/src/lmcache_core/storage/lookups.py"}
    assert any(call.file.startswith("libs/object_files/") for call in store), "the write to the disk is part of it"


def files_of_page(name: str) -> set[str]:
    section = PAGE.read_text().partition(SECTIONS[name])[2].partition("\n## ")[0]
    return set(re.findall(r"^\d+\. `([^`]+)`:", section, re.MULTILINE))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_page_says_what_happens_now(traces: dict[str, Trace], name: str) -> None:
    different = files_of_page(name) ^ set(traces[name].files)
    assert len(different) <= (0 if name == "lookup" else THREADS_DIFFER), f"{WRITE}: {sorted(different)}"


def test_each_file_of_a_lookup_has_its_sentence(traces: dict[str, Trace]) -> None:
    assert {file.partition("/src/")[2] for file in traces["lookup"].files} == set(ABOUT), (
        "scripts/request_path.py, ABOUT"
    )


def test_calls_and_changes_of_file_are_counted() -> None:
    trace = Trace([Call("a", "f"), Call("a", "f"), Call("b", "g"), Call("a", "h")])
    assert (len(trace), trace.files, len(trace.functions), trace.changes) == (4, ["a", "b"], 3, 2)
    assert Budget(1).calls is None
