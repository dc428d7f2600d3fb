"""How many of the chunks that come by were not seen before, estimated in bounded memory.

A HyperLogLog sketch with the historic inverse probability estimator (Cohen 2014, Ting 2014): a chunk that changes the
sketch counts as many as it represents, which is one over the probability that a new chunk changes it.  So that every
chunk's part in the estimate is known when it comes, and the parts can be added up by time and by tenant.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""One uniform 64-bit number for each chunk."""
PRECISION_MAX: Final = 18
"""The bits behind these decide a chunk's rank, whatever the precision, so that ranks are worked out once."""
_BITS: Final = 64
_MANTISSA_BITS: Final = 52
_EXPONENT_BIAS: Final = 1023


class Marks(NamedTuple):
    """What sketches need to know of chunks."""

    registers: NDArray[np.intp]
    """The first `PRECISION_MAX` bits of each."""
    ranks: NDArray[np.uint8]
    """One more than the number of zeros that follow; this or more has a probability of 2 ** (1 - rank)."""

    def at(self, indexes: NDArray[np.intp]) -> Marks:
        return Marks(self.registers[indexes], self.ranks[indexes])


def marks(words: Words) -> Marks:
    registers = (words >> np.uint64(_BITS - PRECISION_MAX)).astype(np.intp)
    rest = (words << np.uint64(PRECISION_MAX)) | np.uint64(1 << (PRECISION_MAX - 1))
    # a float's exponent counts the zeros; rounding changes it once in 2**53 times
    exponents = rest.astype(np.float64).view(np.uint64) >> np.uint64(_MANTISSA_BITS)
    return Marks(registers, (_EXPONENT_BIAS + _BITS - exponents).astype(np.uint8))


class DistinctChunks:
    """Of n new chunks the estimate has a standard deviation of about n / sqrt(2 m), with m = 2**precision, where n counts
    all that are remembered; of k that come when there are n already, of sqrt(k n / (0.72 m)).  Takes 2 m bytes.

    What is remembered is forgotten a generation at a time, so that a chunk that does not come again is new after one
    generation or two."""

    def __init__(self, precision: int) -> None:
        self._shift = PRECISION_MAX - precision
        self._now = np.zeros(1 << precision, np.uint8)
        self._before: NDArray[np.uint8] | None = None
        self._open = float(1 << precision)
        """Sum over all registers of the probability that a new chunk which falls there changes it."""

    @property
    def state_bytes(self) -> int:
        return 2 * self._now.nbytes

    def add(self, chunks: Marks) -> list[tuple[int, float]]:
        """Remember these.  Returns the index of each that changed the sketch and how many new ones it represents."""
        registers = chunks.registers >> self._shift if self._shift else chunks.registers
        now, before, ranks = self._now, self._before, chunks.ranks
        known = now[registers] if before is None else np.maximum(now[registers], before[registers])
        found = []
        for index in np.flatnonzero(ranks > known).tolist():
            register, rank = registers[index], int(ranks[index])
            old = int(now[register]) if before is None else max(int(now[register]), int(before[register]))
            if rank <= old:  # another of these chunks was there first
                continue
            found.append((index, len(now) / self._open))
            self._open += 2.0**-rank - 2.0**-old
            now[register] = rank
        if before is not None:  # what only the last generation knew is known to this one, too
            np.maximum.at(now, registers, ranks)
        return found

    def next_generation(self) -> None:
        """Forget what was added before the last call of this, and not since."""
        self._before, self._now = self._now, np.zeros_like(self._now)
        self._open = float(np.ldexp(1.0, -self._before.astype(np.int32)).sum())
