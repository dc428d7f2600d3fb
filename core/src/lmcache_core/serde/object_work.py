"""One object on its way through serdes."""

from __future__ import annotations

from lmcache_core.contracts.buffers import LentBuffer, MemoryRegion
from lmcache_core.jobs.job_table import Job
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.serde.chain import Plan
from lmcache_core.serde.scratch import Extent, pages


class ObjectWork:
    """The `index`th object of a job."""

    __slots__ = ("index", "job", "key")

    def __init__(self, job: Job, index: int, key: ObjectKey) -> None:
        self.job = job
        self.index = index
        self.key = key


class TransferWork(ObjectWork):
    """With the memory that was lent for it, and what it will take of the serdes' own.

    That is one extent: the header page and what is stored, then the areas between serdes."""

    __slots__ = ("buffer", "plan")

    plan: Plan

    def __init__(self, job: Job, index: int, key: ObjectKey, buffer: LentBuffer) -> None:
        super().__init__(job, index, key)
        self.buffer = buffer

    @property
    def scratch_bytes(self) -> int:
        return scratch_bytes(self.plan)

    def lent(self, region: MemoryRegion, extent: Extent, length: int) -> LentBuffer:
        """The first bytes of the extent, for the adapter inside."""
        return LentBuffer(region, extent.offset, length)

    def between(self, area: memoryview) -> list[memoryview]:
        """The areas between serdes, of the extent's bytes."""
        size, begin = self.plan.between_bytes, pages(HEADER_BYTES + self.plan.stored_bytes_max)
        return [area[begin + size * number :][:size] for number in range(self.plan.areas)]


class StoreWork(TransferWork):
    """From lent memory to the adapter inside."""

    __slots__ = ()


class LoadWork(TransferWork):
    """Back."""

    __slots__ = ()


def scratch_bytes(plan: Plan) -> int:
    """Whole pages."""
    return pages(HEADER_BYTES + plan.stored_bytes_max) + plan.areas * plan.between_bytes
