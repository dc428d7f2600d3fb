"""The kills find what they are there to find."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lmcache_devkit.offer_under_test import OpenableOffer
from tests.durability.kill_rounds import KillRounds
from tests.durability.media import in_files
from tests.durability.planted_bugs import OFFER, Bug

ROUNDS = 40
SEED = 3

LEARNS_SECONDS = 0.2
"""Many batches are done by then."""

SAID = {
    # The kill came before the payload was whole; or before the header was, and what is there is not an object.
    Bug.HEADER_FIRST: r"other bytes than were stored|on the medium: \w+\.kv: Check\(outcome=",
    Bug.DONE_TOO_EARLY: "is PRESENT by its outcome, and it is not so",
    Bug.DELETES_IN_MEMORY: "was deleted, or never stored, and is loaded",
    Bug.COUNTS_FILES_TWICE: "usage is",
    Bug.LISTS_TOO_LITTLE: "the other way round",
    # It misses an object that was there for sure; or one that was being stored or deleted, which the medium has.
    Bug.KNOWS_TOO_EARLY: r"object \d+ (up )?is Outcome\.MISSING|the other way round|usage is",
}


def kill(bug: Bug, folder: Path, rounds: int, learns_seconds: float = 0.0) -> None:
    root = folder / "kv"
    opener = OpenableOffer(OFFER, {"root": str(root), "bug": bug, "learns_seconds": learns_seconds})
    kills = KillRounds(opener, partial(in_files, root), folder, SEED)
    try:
        kills.run(rounds)
    finally:
        kills.close()


@pytest.mark.parametrize("bug", SAID)
def test_an_adapter_with_a_bug_is_found_out(bug: Bug, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=SAID[bug]):
        kill(bug, tmp_path, ROUNDS, LEARNS_SECONDS if bug is Bug.KNOWS_TOO_EARLY else 0.0)


def test_the_same_adapter_without_a_bug_is_not(tmp_path: Path) -> None:
    kill(Bug.NONE, tmp_path, 5)


def test_nor_is_one_that_does_not_know_yet_what_is_there_and_says_so(tmp_path: Path) -> None:
    kill(Bug.NONE, tmp_path, 8, LEARNS_SECONDS)
