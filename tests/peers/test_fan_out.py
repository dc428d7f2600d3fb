"""However many members are said to have what is looked up, a lookup asks the directory once and four of them at most."""

from __future__ import annotations

from pathlib import Path

from tests.peers.simulated import SimulatedPeers
from tests.peers.site import Fleet, prompt, until

CHUNKS = 8
MEMBERS = 64


def test_one_question_to_the_directory_and_four_peers(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2)
    fleet.coordinator.flags += ("--instance-timeout", "600")
    with fleet, SimulatedPeers(fleet.coordinator, MEMBERS - 2) as peers:
        one, two = fleet.servers
        tokens = prompt(1, CHUNKS)
        with one.engine() as first, two.engine() as second:
            fleet.store(first, one, [tokens])
            keys = one.keys()
            first.scheduler.clear(True)
            until(lambda: fleet.known("s0") == 0)
            until(lambda: fleet.members() == MEMBERS)
            peers.claim(keys)
            for number in range(1, 4):
                before = peers.lookups.total()
                assert second.lookup(tokens, f"{number}") == 0
                second.end(f"{number}")
                assert two.status()["reader"]["directory_asked"] == number
                assert peers.lookups.total() - before == 4
