"""One figure of the L2 benchmark: how, how large, how many at a time, and which way."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

SPEED: Final = "gb_per_s"
CPU: Final = "cpu_s_per_gb"
VERBS: Final = ("store", "load")
MIB: Final = 1 << 20


class Cell(NamedTuple):
    """`mode` is buffered, direct or memory."""

    mode: str
    size_mib: int
    depth: int
    verb: str

    def figure(self, unit: str) -> str:
        """Its name in the results."""
        return "/".join((self.mode, f"{self.size_mib}", f"{self.depth}", self.verb, unit))

    @classmethod
    def of(cls, figure: str) -> tuple[Self, str]:
        """Back from the name: the cell and the unit.  Raises ValueError for any other name."""
        mode, size, depth, verb, unit = figure.split("/")
        return cls(mode, int(size), int(depth), verb), unit


class Speed(NamedTuple):
    """What one measurement says."""

    gb_per_second: float
    cpu_seconds_per_gb: float | None = None
    """None where it is not known."""

    def figures(self, cell: Cell) -> dict[str, float]:
        known = {cell.figure(SPEED): self.gb_per_second}
        if self.cpu_seconds_per_gb is not None:
            known[cell.figure(CPU)] = self.cpu_seconds_per_gb
        return known
