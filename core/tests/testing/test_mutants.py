"""The checks find what they are there to find: each planted bug is found by the check that is about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from core.tests.testing.mutants import (
    backends,
    every_mutant,
    eviction_policies,
    http_routes,
    request_modules,
    storage_modules,
    store_policies,
    subscribers,
)
from core.tests.testing.mutants.planted import Outcome, Planted, assert_killed, run_checks
from lmcache_core.testing import HttpRoutesSuite, SubscriberSuite

TABLES = [
    every_mutant.PLANTED,
    backends.PLANTED,
    eviction_policies.PLANTED,
    store_policies.PLANTED,
    http_routes.PLANTED,
    request_modules.PLANTED,
    storage_modules.PLANTED,
    subscribers.PLANTED,
]
"""One for each kind of offer."""
PROCESSES = 3
"""For a table: most of the time is waiting for what a mutant does not do."""


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Planted, dict[str, Outcome]]:
    """What became of every mutant that was chosen under its one check, and of what is right under all of those."""
    chosen = {mutant for item in request.session.items if isinstance(mutant := _parameters(item).get("mutant"), type)}
    return {table: run(table, chosen, tmp_path_factory) for table in TABLES if chosen & set(table.bugs)}


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None and item.path == Path(__file__) else {}


def run(table: Planted, chosen: set[type], folders: pytest.TempPathFactory) -> dict[str, Outcome]:
    checks = {mutant: bug.check for mutant, bug in table.bugs.items() if mutant in chosen}
    nodes = [table.node(mutant, check) for mutant, check in checks.items()]
    nodes += [table.node(table.right, check) for check in sorted(set(checks.values()))]
    parts = [part for first in range(PROCESSES) if (part := nodes[first::PROCESSES])]
    with ThreadPoolExecutor(PROCESSES) as threads:
        runs = threads.map(run_checks, parts, [folders.mktemp("mutants") for _ in parts])
        return {node: outcome for each in runs for node, outcome in each.items()}


@pytest.mark.parametrize(
    ("table", "mutant"),
    [
        pytest.param(table, mutant, id=mutant.__name__, marks=[pytest.mark.slow] if bug.slow else [])
        for table in TABLES
        for mutant, bug in table.bugs.items()
    ],
)
def test_a_planted_bug_is_found_by_its_check_and_what_it_was_made_from_passes(
    found: dict[Planted, dict[str, Outcome]], table: Planted, mutant: type
) -> None:
    assert_killed(found[table], table, mutant)


@pytest.mark.parametrize("right", ["TestReadsHashes", "TestListensToEverything"])
def test_other_subscribers_that_are_right_pass(right: str, tmp_path: Path) -> None:
    found = run_checks([f"{subscribers.PLANTED.file}::{right}"], tmp_path)
    assert [each.reason for each in found.values() if not each.passed] == []


@pytest.mark.parametrize(("suite", "table"), [(HttpRoutesSuite, http_routes), (SubscriberSuite, subscribers)])
def test_every_check_finds_a_bug(suite: type, table: ModuleType) -> None:
    assert {bug.check for bug in table.PLANTED.bugs.values()} == {
        name for name in dir(suite) if name.startswith("test_")
    }


def test_of_routes_that_are_not_there_no_check_passes(tmp_path: Path) -> None:
    found = run_checks([f"{http_routes.PLANTED.file}::TestOffersNothing"], tmp_path)
    assert {(each.passed, each.reason) for each in found.values()} == {(False, "")}


@pytest.mark.parametrize("table", TABLES[1:], ids=lambda table: table.right.__name__)
def test_what_the_mutants_were_made_from_passes_every_check(table: Planted, tmp_path: Path) -> None:
    found = run_checks([table.node(table.right)], tmp_path)
    assert {name: each.reason for name, each in found.items() if each.failed} == {}
    assert any(each.passed for each in found.values())
