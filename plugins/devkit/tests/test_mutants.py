"""The checks find what they are there to find: each planted bug is found by the check that is about it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from lmcache_devkit import (
    HttpRoutesSuite,
    L1MemorySuite,
    L2EvictionSuite,
    ServiceSuite,
    SubscriberSuite,
    TransferChannelSuite,
)
from plugins.devkit.tests.mutants import (
    http_routes,
    l1_memories,
    l2_evictions,
    services,
    subscribers,
    transfer_channels,
)
from plugins.devkit.tests.mutants.planted import Outcome, Planted, assert_killed, run_checks
from plugins.devkit.tests.mutants.tables import TABLES, run_tables

ALWAYS = {
    "RemembersWhatIsMissing",
    "RemembersWhatItHasDeleted",
    "ReadsThroughOneBuffer",
    "EvictsByChance",
    "PushesEachHit",
    "RemembersItsAdapters",
    "LooksForDuplicatesInTheBatch",
    "NeverReleases",
    "DoesNotLookForTheWorker",
    "RepliesToHitsOnly",
    "DropsTheSalt",
    "IgnoresTheGate",
    "SleepsInline",
    "TakesTheEnginesRequestId",
    "HoldsItsLock",
    "LacksAReason",
    "LeavesItsThread",
    "AddsWhatIsAskedFor",
    "AsksTheServerAtOnce",
    "KeepsItsFile",
    "SkipsNothing",
    "ForgetsNothing",
    "Writes",
    "KeepsTheBuffersOfStores",
    "Deletes",
    "RemembersItsHits",
    "LooksForNoUse",
    "BelievesThatItWorked",
}
"""Of the tables beside that of the L2 adapters on one file each, what `make test` plants, too; the others are slow tests."""


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What became of every mutant that was chosen under its one check, and of what is right under all of those."""
    chosen = {mutant for item in request.session.items if isinstance(mutant := _parameters(item).get("mutant"), type)}

    def new_folder() -> Path:
        return tmp_path_factory.mktemp("mutants")

    return run_tables(TABLES, chosen, new_folder)


def is_slow(table: Planted, mutant: type) -> bool:
    return table.bugs[mutant].slow if table is TABLES[0] else mutant.__name__ not in ALWAYS


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None and item.path == Path(__file__) else {}


@pytest.mark.parametrize(
    ("table", "mutant"),
    [
        pytest.param(table, mutant, id=mutant.__name__, marks=[pytest.mark.slow] if is_slow(table, mutant) else [])
        for table in TABLES
        for mutant in table.bugs
    ],
)
def test_a_planted_bug_is_found_by_its_check_and_what_it_was_made_from_passes(
    found: dict[str, Outcome], table: Planted, mutant: type
) -> None:
    assert_killed(found, table, mutant)


@pytest.mark.parametrize("right", ["TestReadsHashes", "TestListensToEverything"])
@pytest.mark.slow
def test_other_subscribers_that_are_right_pass(right: str, tmp_path: Path) -> None:
    found = run_checks([f"{subscribers.PLANTED.file}::{right}"], tmp_path)
    assert [each.reason for each in found.values() if not each.passed] == []


@pytest.mark.parametrize(
    ("suite", "table"),
    [
        (HttpRoutesSuite, http_routes),
        (L1MemorySuite, l1_memories),
        (L2EvictionSuite, l2_evictions),
        (ServiceSuite, services),
        (SubscriberSuite, subscribers),
        (TransferChannelSuite, transfer_channels),
    ],
)
def test_every_check_finds_a_bug(suite: type, table: ModuleType) -> None:
    assert {bug.check for bug in table.PLANTED.bugs.values()} == {
        name for name in dir(suite) if name.startswith("test_")
    }


def test_of_routes_that_are_not_there_no_check_passes(tmp_path: Path) -> None:
    found = run_checks([f"{http_routes.PLANTED.file}::TestOffersNothing"], tmp_path)
    assert {(each.passed, each.reason) for each in found.values()} == {(False, "")}


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES[1:], ids=lambda table: table.right.__name__)
def test_what_the_mutants_were_made_from_passes_every_check(table: Planted, tmp_path: Path) -> None:
    found = run_checks([table.node(table.right)], tmp_path)
    assert {name: each.reason for name, each in found.items() if each.failed} == {}
    assert any(each.passed for each in found.values())
