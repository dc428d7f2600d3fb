"""However many members are said to have what is looked up, and of however many workers, a lookup asks the directory once and
four of them at most."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.simulated import SimulatedPeers
from tests.peers.site import Fleet, prompt, until

CHUNKS = 8
MEMBERS = 64


@pytest.mark.parametrize("workers", [1, 2])
def test_one_question_to_the_directory_and_four_peers(workers: int, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2)
    fleet.coordinator.flags += ("--instance-timeout", "600")
    with fleet, SimulatedPeers(fleet.coordinator, MEMBERS - 2) as peers:
        one, two = fleet.servers
        tokens = prompt(1, CHUNKS)
        with ExitStack() as stack:
            first, second = (
                [stack.enter_context(server.engine(world_size=workers, worker_id=worker)) for worker in range(workers)]
                for server in (one, two)
            )
            for engine in first:
                assert engine.store(tokens)
            keys = until(lambda: (found := one.keys()) and len(found) == workers * CHUNKS and found)
            assert len({key.space for key in keys}) == workers
            until(lambda: fleet.known("s0") == len(keys))
            first[0].scheduler.clear(True)
            until(lambda: fleet.known("s0") == 0)
            until(lambda: fleet.members() == MEMBERS)
            peers.claim(keys)
            for number in range(1, 4):
                before = peers.lookups.total()
                assert second[0].lookup(tokens, f"{number}") == 0
                second[0].end(f"{number}")
                assert two.status()["reader"]["directory_asked"] == number
                assert peers.lookups.total() - before == 4
