"""The directory: which owners have which keys.  An owner is a number for one location of one worker of one instance.

There are two implementations with the same behaviour: `PureDirectory` here, and the compiled one of lmcache-native, which has
64 bits of each key (about 18 bytes per placement) and may therefore name an owner wrongly once in 10**10 answers.  Readers
verify keys, so a wrong name is a miss.
"""

from __future__ import annotations

import secrets
import threading
from array import array
from collections import defaultdict
from itertools import accumulate
from typing import Final, Protocol

from typing_extensions import Buffer

from lmcache_client.errors import ConfigError

HASH_BYTES: Final = 32
OWNERS: Final = 65_536
"""Owner numbers are below; 0 is not an owner."""
DEAD: Final = 0
"""What the owner has is not found, and the sweep removes it.  Owners begin in this state."""
HIDDEN: Final = 1
"""What the owner has is kept and not found."""
VISIBLE: Final = 2
FLEET_ABI: Final = 1
"""Of the compiled implementation."""


class Directory(Protocol):
    """Safe from any thread.  `hashes` are chunk hashes of 32 bytes, one behind the other; `space` is a number of 64 bits for
    everything else in a key.  Raises ValueError for other lengths, and for a number that is not an owner."""

    def set_state(self, owner: int, state: int) -> None:
        """Takes effect at once, in O(1).  A dead owner's number may be used again when the sweep has been through all parts
        once since its death: until then things that belonged to the dead one would become visible."""

    def add(self, space: int, hashes: Buffer, owner: int) -> int:
        """The owner has these keys.  Returns how many it did not have before.  Has no effect for a dead owner."""

    def remove(self, space: int, hashes: Buffer, owner: int) -> int:
        """The owner does not have these keys any more.  Returns how many it had."""

    def find(self, space: int, hashes: Buffer) -> tuple[bytes, bytes]:
        """The visible owners of each key: u32 ends, u16 owners, in the machine's byte order.  Owners of key i are those from
        ends[i - 1] to ends[i], in no order."""

    def prefixes(self, space: int, hashes: Buffer, groups: Buffer) -> list[tuple[int, int]]:
        """How many keys from the first on each group of owners has, without a gap: (group, number), for groups that have the
        first key.  `groups`: the group of each of the 65,536 owners, u16; owners of group 0 do not count."""

    def sweep(self, lines: int) -> int:
        """Remove what dead owners have, in up to this number of lines of the table, and go on there the next time.  Returns
        how often the sweep has been through the whole table."""

    def count(self, owner: int) -> int:
        """Keys that the owner has."""

    def size_bytes(self) -> int:
        """Memory that the table takes."""


class PureDirectory:
    """Implements `Directory` with whole keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states = bytearray(OWNERS)
        self._owners: dict[tuple[int, bytes], set[int]] = {}
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._to_sweep: list[tuple[int, bytes]] = []
        self._passes = 0

    def set_state(self, owner: int, state: int) -> None:
        with self._lock:
            before, self._states[_owner(owner)] = self._states[owner], state
            if DEAD in (before, state):
                self._counts[owner] = 0

    def add(self, space: int, hashes: Buffer, owner: int) -> int:
        added = 0
        with self._lock:
            if self._states[_owner(owner)] == DEAD:
                return 0
            for chunk_hash in _split(hashes):
                owners = self._owners.setdefault((space, chunk_hash), set())
                added += owner not in owners
                owners.add(owner)
            self._counts[owner] += added
        return added

    def remove(self, space: int, hashes: Buffer, owner: int) -> int:
        removed = 0
        with self._lock:
            if self._states[_owner(owner)] == DEAD:
                return 0
            for chunk_hash in _split(hashes):
                owners = self._owners.get((space, chunk_hash))
                if owners and owner in owners:
                    removed += 1
                    owners.discard(owner)
                    if not owners:
                        del self._owners[space, chunk_hash]
            self._counts[owner] -= removed
        return removed

    def find(self, space: int, hashes: Buffer) -> tuple[bytes, bytes]:
        with self._lock:
            found = [self._visible(space, chunk_hash) for chunk_hash in _split(hashes)]
        ends = array("I", accumulate(len(owners) for owners in found))
        return ends.tobytes(), array("H", [owner for owners in found for owner in owners]).tobytes()

    def prefixes(self, space: int, hashes: Buffer, groups: Buffer) -> list[tuple[int, int]]:
        group_of = memoryview(groups).cast("B").cast("H")
        if len(group_of) != OWNERS:
            raise ValueError(f"groups are {OWNERS} numbers of 16 bits")
        lengths: dict[int, int] = {}
        with self._lock:
            for at, chunk_hash in enumerate(_split(hashes)):
                here = {group_of[owner] for owner in self._visible(space, chunk_hash)} - {0}
                longer = {group for group in here if lengths.get(group, 0) == at}
                if not longer:
                    break
                lengths.update(dict.fromkeys(longer, at + 1))
        return list(lengths.items())

    def sweep(self, lines: int) -> int:
        if lines < 1:
            raise ValueError("lines must be at least 1")
        with self._lock:
            if not self._to_sweep:
                self._to_sweep = list(self._owners)
            for _ in range(min(lines, len(self._to_sweep))):
                key = self._to_sweep.pop()
                alive = {owner for owner in self._owners.get(key, ()) if self._states[owner] != DEAD}
                if alive:
                    self._owners[key] = alive
                else:
                    self._owners.pop(key, None)
            self._passes += not self._to_sweep
            return self._passes

    def count(self, owner: int) -> int:
        with self._lock:
            return self._counts[_owner(owner)]

    def size_bytes(self) -> int:
        with self._lock:
            return 300 * len(self._owners) + 40 * sum(self._counts.values())

    def _visible(self, space: int, chunk_hash: bytes) -> list[int]:
        return [owner for owner in self._owners.get((space, chunk_hash), ()) if self._states[owner] == VISIBLE]


def new_directory() -> Directory:
    """The compiled one where lmcache-native is installed, else the pure one."""
    try:
        from lmcache_native import _fleet
    except ImportError:
        return PureDirectory()
    if _fleet.FLEET_ABI != FLEET_ABI:
        raise ConfigError(
            f"lmcache-native: its directory has interface {_fleet.FLEET_ABI}, and lmcache-fleet needs {FLEET_ABI}; "
            "install both in one version: pip install --upgrade lmcache-native lmcache-fleet"
        )
    return _fleet.Directory(secrets.randbits(64))


def _owner(owner: int) -> int:
    if not 1 <= owner < OWNERS:
        raise ValueError(f"an owner is a number from 1 to {OWNERS - 1}")
    return owner


def _split(hashes: Buffer) -> list[bytes]:
    data = bytes(hashes)
    if len(data) % HASH_BYTES:
        raise ValueError(f"hashes have {HASH_BYTES} bytes each, and {len(data)} is not a multiple")
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]
