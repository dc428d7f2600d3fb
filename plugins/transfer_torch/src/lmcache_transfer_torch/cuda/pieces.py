"""A job in pieces: each fits a staging buffer, and is contiguous there and in the objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmcache_transfer_torch.cuda.page_shape import PageShape


class HostRun(NamedTuple):
    """Contiguous bytes of one object, and where they are in the staging buffer."""

    staged: int
    address: int
    length: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Planes `[first_plane, end_plane)` of `objects` consecutive objects of one kernel group."""

    group: int
    first_object: int
    objects: int
    first_plane: int
    end_plane: int
    object_bytes: int
    """Of these planes, for each object: what one object takes of the staging buffer."""
    runs: tuple[HostRun, ...]

    @property
    def nbytes(self) -> int:
        return self.objects * self.object_bytes


def pieces_of(
    group: int, shape: PageShape, planes: int, objects: Sequence[int], staging_bytes: int, seam_bytes: int
) -> Iterator[Piece]:
    """`objects` are addresses of the group's region in each object.  As many whole regions as fit go together; a larger
    region goes in runs of planes, of which one must fit.  No run crosses a multiple of `seam_bytes` (0: there are none):
    that is where one pinned stretch ends and the next begins, and no copy may lie in two."""
    together = max(1, staging_bytes // (planes * shape.plane_bytes))
    step = min(planes, staging_bytes // shape.plane_bytes)
    for first in range(0, len(objects), together):
        chosen = objects[first : first + together]
        for plane in range(0, planes, step):
            end = min(plane + step, planes)
            length = (end - plane) * shape.plane_bytes
            offset = plane * shape.plane_bytes
            runs = tuple(
                run
                for number, address in enumerate(chosen)
                for run in _runs(number * length, address + offset, length, seam_bytes)
            )
            yield Piece(group, first, len(chosen), plane, end, length, runs)


def _runs(staged: int, address: int, length: int, seam_bytes: int) -> Iterator[HostRun]:
    while length:
        step = min(length, seam_bytes - address % seam_bytes) if seam_bytes else length
        yield HostRun(staged, address, step)
        staged, address, length = staged + step, address + step, length - step
