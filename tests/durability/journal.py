"""What a process that may be killed at any moment is sure of, object by object.

One word of shared memory for each object, written before an operation begins and after its outcome came.  The pages belong
to a file, so what the process wrote is there when it is not any more.
"""

from __future__ import annotations

import mmap
import threading
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, Self

OBJECTS: Final = 192
"""The number of objects on a medium."""

_PHASE, _OPERATIONS, _FIRST = 0, 1, 2
_WORD_BYTES: Final = 8
_STATE_BITS: Final = 8


class Phase(IntEnum):
    """How far a process has come."""

    STARTING = 0
    OPENING = 1
    WORKING = 2
    CLOSING = 3
    CLOSED = 4


class State(IntEnum):
    """What is known of an object."""

    ABSENT = 0
    STORING = 1
    """It may be there, and not in part."""
    PRESENT = 2
    DELETING = 3
    """It may be gone, and not in part."""


class Entry(NamedTuple):
    """`version` counts how often the object was stored anew: each time it has other bytes."""

    state: State
    version: int


class Journal:
    """Each object has one writer at a time; the rest may be used by any thread, and by other processes beside."""

    def __init__(self, path: Path) -> None:
        """Opens the journal at `path`, which `create` has made."""
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        # Aligned words: each is written by one instruction, so that none is ever half written.
        self._words = memoryview(self._memory).cast("Q")
        self._counting = threading.Lock()

    @classmethod
    def create(cls, path: Path) -> Self:
        """An empty one: every object is ABSENT."""
        path.write_bytes(bytes(_WORD_BYTES * (_FIRST + OBJECTS)))
        return cls(path)

    @property
    def phase(self) -> Phase:
        return Phase(self._words[_PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[_PHASE] = phase

    @property
    def operations(self) -> int:
        """How many batches were answered since `begin`."""
        return self._words[_OPERATIONS]

    def begin(self) -> None:
        """Another process will write."""
        self.phase = Phase.STARTING
        self._words[_OPERATIONS] = 0

    def count(self) -> None:
        with self._counting:
            self._words[_OPERATIONS] += 1

    def __getitem__(self, number: int) -> Entry:
        word = self._words[_FIRST + number]
        return Entry(State(word & ((1 << _STATE_BITS) - 1)), word >> _STATE_BITS)

    def __setitem__(self, number: int, entry: Entry) -> None:
        self._words[_FIRST + number] = entry.version << _STATE_BITS | entry.state

    def numbers(self, *states: State) -> list[int]:
        """The objects of which one of these is known."""
        return [number for number in range(OBJECTS) if self[number].state in states]

    def close(self) -> None:
        """Release the memory.  No other call may follow."""
        self._words.release()
        self._memory.close()
