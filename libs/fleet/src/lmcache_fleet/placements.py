"""Which worker of which instance has a key, and where: names and generations on top of the directory's owner numbers."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from blake3 import blake3
from typing_extensions import Buffer

from lmcache_client.errors import LMCacheError
from lmcache_fleet.directory import DEAD, HIDDEN, OWNERS, VISIBLE, Directory, new_directory

SWEEP_LINES: Final = 4096
"""Lines of the table that one step of the sweep looks at: 256 KiB."""
_GROUPS_KEPT: Final = 16
_PASSES: Final = 2
"""Passes of the sweep until a dead owner's number is free: the one that is under way at its death may be past its keys."""


class Location(NamedTuple):
    """Where keys are.  `source` is `l1` or the name of an L2 adapter."""

    instance: str
    worker: int
    source: str


class TooManyOwnersError(LMCacheError):
    """All owner numbers are in use."""


class Generation:
    """What is known of one location, from one snapshot on.  Hidden until it is shown; then it replaces the one before."""

    def __init__(self, location: Location, owner: int) -> None:
        self.location: Final = location
        self.owner: Final = owner
        self.is_dropped = False
        """Its number may be another one's."""


def space_number(tail: bytes) -> int:
    """Of a key's canonical form behind the chunk hash (`KeySpace.tail`)."""
    return int.from_bytes(blake3(tail).digest(8), "little")


class Placements:
    """Any thread may look up and sweep.  Changes of one location belong to one thread at a time."""

    def __init__(self, directory: Directory | None = None) -> None:
        self._directory = directory or new_directory()
        self._lock = threading.Lock()  # guards all below
        self._shown: dict[Location, Generation] = {}
        self._locations: list[Location | None] = [None] * OWNERS
        """By owner number; of hidden ones too."""
        self._unused = list(range(OWNERS - 1, 0, -1))
        self._groups: dict[tuple[str, ...] | None, tuple[bytes, list[str]]] = {}
        """What `prefixes` needs, by the sources that were asked for; cleared when `_shown` changes."""
        self._owners: Mapping[int, Location] | None = None
        """What `owners` returns; None where that has changed."""
        self._dead: list[tuple[int, int]] = []
        """Pass after which the number may be used again, and the number."""
        self._passes = 0

    def begin(self, location: Location) -> Generation:
        """A new generation, hidden and empty.  Raises TooManyOwnersError."""
        with self._lock:
            if not self._unused:
                raise TooManyOwnersError(
                    f"the directory has {OWNERS - 1} locations, which is the most; those that have left are free again "
                    "when the sweep has been through the table twice"
                )
            owner = self._unused.pop()
            self._locations[owner] = location
            self._directory.set_state(owner, HIDDEN)
            return Generation(location, owner)

    def show(self, generation: Generation) -> None:
        """Lookups find it from now on, and not the generation that was shown for its location before."""
        with self._lock:
            before = self._shown.get(generation.location)
            if before is generation:
                return
            self._directory.set_state(generation.owner, VISIBLE)
            self._shown[generation.location] = generation
            self._forget_shown()
            if before is not None:
                self._bury(before)

    def drop(self, generation: Generation) -> None:
        """Lookups do not find it any more.  O(1), whatever it has."""
        with self._lock:
            if self._shown.get(generation.location) is generation:
                del self._shown[generation.location]
                self._forget_shown()
            if self._locations[generation.owner] is generation.location:
                self._bury(generation)

    def add(self, generation: Generation, space: int, hashes: Buffer) -> int:
        """Returns how many keys it did not have.  Not for one that was dropped."""
        assert not generation.is_dropped, "its number may be another one's"
        return self._directory.add(space, hashes, generation.owner)

    def remove(self, generation: Generation, space: int, hashes: Buffer) -> int:
        """Returns how many of the keys it had.  Not for one that was dropped."""
        assert not generation.is_dropped, "its number may be another one's"
        return self._directory.remove(space, hashes, generation.owner)

    def lookup(self, space: int, hashes: Buffer) -> list[list[Location]]:
        """By key: who has it.  Each location once."""
        ends, owners = self.find(space, hashes)
        locations = self._locations
        found = [locations[owner] for owner in owners]
        # While a generation replaces another, both are visible for an instant.
        return [
            list(dict.fromkeys(each for each in found[begin:end] if each is not None))
            for begin, end in pairwise([0, *ends])
        ]

    def find(self, space: int, hashes: Buffer) -> tuple[Sequence[int], Sequence[int]]:
        """The same as numbers: the owners of key i are those from ends[i - 1] to ends[i]."""
        ends, owners = self._directory.find(space, hashes)
        return array("I", ends), array("H", owners)

    def location(self, owner: int) -> Location | None:
        """None: nothing of it is found any more."""
        return self._locations[owner]

    def owners(self) -> Mapping[int, Location]:
        """Locations by owner number, of those that are shown.  The same object as before where nothing has changed."""
        with self._lock:
            if (known := self._owners) is None:
                known = self._owners = {generation.owner: location for location, generation in self._shown.items()}
            return known

    def prefixes(self, space: int, hashes: Buffer, sources: Sequence[str] | None = None) -> Mapping[str, int]:
        """By instance: how many keys from the first on it has, all of its workers and locations together, or these sources
        only.  Instances that do not have the first are left out."""
        groups, names = self._instances(None if sources is None else tuple(sources))
        return {names[group]: length for group, length in self._directory.prefixes(space, hashes, groups)}

    def _instances(self, sources: tuple[str, ...] | None) -> tuple[bytes, list[str]]:
        """The number of each owner's instance, and the instances by number.  Made anew when what is shown has changed."""
        with self._lock:
            if sources not in self._groups:
                groups, names, numbers = array("H", bytes(2 * OWNERS)), [""], dict[str, int]()
                for location, generation in self._shown.items():
                    if sources is not None and location.source not in sources:
                        continue
                    number = numbers.setdefault(location.instance, len(names))
                    if number == len(names):
                        names.append(location.instance)
                    groups[generation.owner] = number
                if len(self._groups) >= _GROUPS_KEPT:
                    self._groups.clear()
                self._groups[sources] = groups.tobytes(), names
            return self._groups[sources]

    def counts(self) -> Mapping[Location, int]:
        """Keys by location, of those that are shown."""
        with self._lock:
            shown = list(self._shown.values())
        return {generation.location: self._directory.count(generation.owner) for generation in shown}

    def size_bytes(self) -> int:
        return self._directory.size_bytes()

    def sweep(self) -> bool:
        """One step.  False: there is nothing to sweep."""
        with self._lock:
            if not self._dead:
                return False
        passes = self._directory.sweep(SWEEP_LINES)
        with self._lock:
            self._passes = max(self._passes, passes)
            free = [owner for due, owner in self._dead if due <= self._passes]
            if free:
                self._dead = [each for each in self._dead if each[0] > self._passes]
                self._unused += free
        return True

    def _forget_shown(self) -> None:
        """It has changed: what was made of it is made anew."""
        self._groups.clear()
        self._owners = None

    def _bury(self, generation: Generation) -> None:
        generation.is_dropped = True
        self._directory.set_state(generation.owner, DEAD)
        self._locations[generation.owner] = None
        self._dead.append((self._passes + _PASSES, generation.owner))
