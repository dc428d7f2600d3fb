"""The kills find what they are there to find."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lmcache_core.testing.offer_under_test import OpenableOffer
from tests.durability.kill_rounds import KillRounds
from tests.durability.media import in_files
from tests.durability.planted_bugs import OFFER, Bug

ROUNDS = 40
SEED = 3

SAID = {
    Bug.HEADER_FIRST: "other bytes than were stored",
    Bug.DONE_TOO_EARLY: "is PRESENT by its outcome, and it is not so",
    Bug.DELETES_IN_MEMORY: "was deleted, or never stored, and is loaded",
    Bug.COUNTS_FILES_TWICE: "usage is",
    Bug.LISTS_TOO_LITTLE: "the other way round",
}


def kill(bug: Bug, folder: Path, rounds: int) -> None:
    root = folder / "kv"
    opener = OpenableOffer(OFFER, {"root": str(root), "bug": bug})
    kills = KillRounds(opener, partial(in_files, root), folder, SEED)
    try:
        kills.run(rounds)
    finally:
        kills.close()


@pytest.mark.parametrize("bug", SAID)
def test_an_adapter_with_a_bug_is_found_out(bug: Bug, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=SAID[bug]):
        kill(bug, tmp_path, ROUNDS)


def test_the_same_adapter_without_a_bug_is_not(tmp_path: Path) -> None:
    kill(Bug.NONE, tmp_path, 5)
