"""Generations: nothing of a hidden or a dropped one is found, and a number is not used again too early."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from lmcache_fleet.directory import PureDirectory
from lmcache_fleet.placements import Generation, Location, Placements, space_number

_fleet = pytest.importorskip("lmcache_native._fleet")
SPACE = space_number(b"space")


def hashes(*numbers: int) -> bytes:
    return b"".join(blake2b(number.to_bytes(8, "little"), digest_size=32).digest() for number in numbers)


@pytest.fixture(params=["pure", "native"])
def placements(request: pytest.FixtureRequest) -> Placements:
    return Placements(PureDirectory() if request.param == "pure" else _fleet.Directory(5))


def shown(placements: Placements, instance: str, *numbers: int, source: str = "l1", worker: int = 0) -> Generation:
    generation = placements.begin(Location(instance, worker, source))
    placements.add(generation, SPACE, hashes(*numbers))
    placements.show(generation)
    return generation


def instances(placements: Placements, *numbers: int) -> list[set[str]]:
    return [{each.instance for each in row} for row in placements.lookup(SPACE, hashes(*numbers))]


def test_a_snapshot_replaces_what_was_known_in_one_step(placements: Placements) -> None:
    shown(placements, "a", 1, 2)
    again = placements.begin(Location("a", 0, "l1"))
    placements.add(again, SPACE, hashes(2, 3))
    assert instances(placements, 1, 2, 3) == [{"a"}, {"a"}, set()]
    placements.show(again)
    assert instances(placements, 1, 2, 3) == [set(), {"a"}, {"a"}]
    assert placements.counts() == {Location("a", 0, "l1"): 2}


def test_an_abandoned_snapshot_is_never_found(placements: Placements) -> None:
    shown(placements, "a", 1)
    hidden = placements.begin(Location("a", 0, "l1"))
    placements.add(hidden, SPACE, hashes(9))
    placements.drop(hidden)
    assert instances(placements, 1, 9) == [{"a"}, set()]
    placements.drop(hidden)
    assert instances(placements, 1) == [{"a"}]


def test_a_number_is_used_again_only_after_its_keys_are_gone(placements: Placements) -> None:
    """Members come and go, and the sweep is slow: what the new one has is never what an old one had."""
    chooser = random.Random(3)
    last: dict[str, set[int]] = {}
    live: dict[str, Generation] = {}
    placements._unused = placements._unused[-6:]  # so that numbers are used again at once
    for _ in range(300):
        name = chooser.choice("abc")
        if name in live:
            placements.drop(live.pop(name))
            del last[name]
        elif placements._unused:
            mine = set(chooser.sample(range(200), 50))
            live[name] = shown(placements, name, *mine)
            last[name] = mine
        for _ in range(chooser.randrange(40)):
            placements.sweep()
        assert instances(placements, *range(200)) == [
            {name for name, mine in last.items() if number in mine} for number in range(200)
        ]
    while placements.sweep():
        pass
    assert len(placements._unused) == 6 - len(live)


def test_prefixes_are_by_instance_over_its_workers_and_locations(placements: Placements) -> None:
    shown(placements, "a", 1, 2)
    shown(placements, "a", 3, source="disk")
    shown(placements, "a", 4, worker=1)
    shown(placements, "b", 1, 3, 4)
    shown(placements, "c", 2, 3)
    assert placements.prefixes(SPACE, hashes(1, 2, 3, 4, 5)) == {"a": 4, "b": 1}
    assert placements.prefixes(SPACE, hashes(1, 2, 3, 4, 5), ["l1"]) == {"a": 2, "b": 1}
    assert placements.prefixes(SPACE, b"") == {}
