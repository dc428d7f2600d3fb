"""This project's directory, compiled and pure."""

from __future__ import annotations

from array import array
from itertools import pairwise

from lmcache_fleet.directory import DEAD, OWNERS, VISIBLE, Directory, PureDirectory, new_directory

PAGE_BYTES = 65_536 * 32
"""What a member sends at once."""
SPACE = 1
SWEEP_LINES = 4096


class Ours:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._groups = array("H", [0]) + array("H", range(1, OWNERS))

    def prepared(self, instance: int, hashes: bytes) -> bytes:
        return hashes

    def report(self, instance: int, hashes: bytes) -> None:
        self._directory.set_state(instance, VISIBLE)
        pages = memoryview(hashes)  # a member's messages: to cut them is not counted
        for at in range(0, len(pages), PAGE_BYTES):
            self._directory.add(SPACE, pages[at : at + PAGE_BYTES], instance)

    def look(self, hashes: bytes) -> tuple[bytes, bytes]:
        return self._directory.find(SPACE, hashes)

    def found(self, hashes: bytes) -> int:
        ends, _ = self.look(hashes)
        return sum(begin != end for begin, end in pairwise([0, *array("I", ends)]))

    def prefixes(self, hashes: bytes) -> int:
        return len(self._directory.prefixes(SPACE, hashes, self._groups))

    def deregister(self, instance: int) -> None:
        self._directory.set_state(instance, DEAD)

    def sweep(self) -> bool:
        """One step.  False: a whole pass is done."""
        return self._directory.sweep(SWEEP_LINES) == 0


def native() -> Ours:
    directory = new_directory()
    if isinstance(directory, PureDirectory):
        raise SystemExit("lmcache-native is not installed here")
    return Ours(directory)


def pure() -> Ours:
    return Ours(PureDirectory())
