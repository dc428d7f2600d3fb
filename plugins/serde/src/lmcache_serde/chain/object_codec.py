"""One whole object through a chain of serdes: header page, lengths and digests included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import (
    HEADER_BYTES,
    NO_DIGEST,
    BorrowedBuffer,
    DamagedObjectError,
    FaultLog,
    Job,
    MemoryRegion,
    ObjectHeader,
    ObjectKey,
    Outcome,
    SerdeMark,
    UnreadableObjectError,
    check,
    inspect,
    seal,
    seal_encoded,
)
from lmcache_serde.chain.links import PAD, Plan, SerdeChain, SerdeFailedError
from lmcache_serde.chain.scratch import Extent, pages


class ObjectWork:
    """The `index`th object of a job."""

    __slots__ = ("index", "job", "key")

    def __init__(self, job: Job, index: int, key: ObjectKey) -> None:
        self.job = job
        self.index = index
        self.key = key


class TransferWork(ObjectWork):
    """With the memory that was borrowed for it, and what it will take of the serdes' own.

    That is one extent: the header page and what is stored, then the areas between serdes."""

    __slots__ = ("buffer", "plan")

    plan: Plan

    def __init__(self, job: Job, index: int, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        super().__init__(job, index, key)
        self.buffer = buffer

    @property
    def scratch_bytes(self) -> int:
        return scratch_bytes(self.plan)

    def borrowed(self, region: MemoryRegion, extent: Extent, length: int) -> BorrowedBuffer:
        """The first bytes of the extent, for the adapter inside."""
        return BorrowedBuffer(region, extent.offset, length)

    def between(self, area: memoryview) -> list[memoryview]:
        """The areas between serdes, of the extent's bytes."""
        size, begin = self.plan.between_bytes, pages(HEADER_BYTES + self.plan.stored_bytes_max)
        return [area[begin + size * number :][:size] for number in range(self.plan.areas)]


class StoreWork(TransferWork):
    """From borrowed memory to the adapter inside."""

    __slots__ = ()


class LoadWork(TransferWork):
    """Back."""

    __slots__ = ()


def scratch_bytes(plan: Plan) -> int:
    """Whole pages."""
    return pages(HEADER_BYTES + plan.stored_bytes_max) + plan.areas * plan.between_bytes


class ObjectCodec:
    """Any thread."""

    def __init__(self, chain: SerdeChain, faults: FaultLog, *, pads: bool, trusts: bool, is_shared: bool) -> None:
        """`pads`: all objects of a plan are stored with one length.  `trusts`: the adapter that loaded an object has checked
        its header and the digest of what was stored.  `is_shared`: other servers may store there, through the same serdes with
        other keys."""
        self.chain: Final = chain
        self._faults = faults
        self._pads = pads
        self._trusts = trusts
        self._is_shared = is_shared

    def encode(self, work: StoreWork, area: memoryview) -> tuple[Outcome, int]:
        """DONE, and the length of the object that is at the start of `area` now; or why there is none.  What is not
        whole is refused: encoded, its fault could not be seen any more."""
        payload = work.buffer.view[HEADER_BYTES:]
        checked = check(work.buffer.view, work.key)
        header = inspect(work.buffer.view[:HEADER_BYTES])
        if checked.outcome is not Outcome.DONE or not isinstance(header, ObjectHeader):
            self._faults.error(f"an object that is to be stored is {checked.outcome.value}: {checked.reason}")
            return checked.outcome, 0
        most = work.plan.stored_bytes_max
        room = area[HEADER_BYTES : HEADER_BYTES + most]
        try:
            length, marks = self.chain.encode(work.key, work.plan, payload, room, work.between(area))
        except SerdeFailedError:
            self._faults.exception("an object was not encoded")
            return Outcome.FAILED, 0
        if self._pads:
            room[length:] = bytes(most - length)
            marks, length = (*marks, SerdeMark(PAD, b"", length)), most
        seal_encoded(
            area[: HEADER_BYTES + length],
            work.key,
            header.created_ns,
            payload_bytes=len(payload),
            payload_digest=header.payload_digest if self.chain.shows_payload_digest else NO_DIGEST,
            serdes=marks,
        )
        return Outcome.DONE, HEADER_BYTES + length

    def decode(self, work: LoadWork, area: memoryview) -> Outcome:
        """DONE, and the object is whole and plain in the borrowed buffer; or why it is not."""
        run = area[: HEADER_BYTES + work.plan.stored_bytes_max]
        if not self._trusts and (outcome := check(run, work.key, at_most=True).outcome) is not Outcome.DONE:
            return outcome
        header = inspect(run[:HEADER_BYTES])
        if not isinstance(header, ObjectHeader):
            return header.outcome
        if header.key != work.key:
            return Outcome.FOREIGN
        stored = run[HEADER_BYTES : HEADER_BYTES + header.stored_bytes]
        marks = header.serdes
        if marks and marks[-1].name == PAD and marks[-1].input_bytes <= len(stored):
            stored, marks = stored[: marks[-1].input_bytes], marks[:-1]
        names = tuple(mark.name for mark in marks)
        if names != self.chain.names:
            self.chain.counters.refused("other_chain")
            self._faults.error(
                f"objects of another chain are left alone: stored through {_shown(names)}, and 'serde' names "
                f"{_shown(self.chain.names)}"
            )
            return Outcome.FOREIGN
        return self._decoded(work, header, marks, stored, area)

    def _decoded(
        self,
        work: LoadWork,
        header: ObjectHeader,
        marks: tuple[SerdeMark, ...],
        stored: memoryview,
        area: memoryview,
    ) -> Outcome:
        whole = work.buffer.view
        size = header.payload_bytes
        if HEADER_BYTES + size != len(whole) or marks[0].input_bytes != size:
            return Outcome.DAMAGED
        try:
            self.chain.decode(work.key, work.plan, marks, stored, whole[HEADER_BYTES:], work.between(area))
        except DamagedObjectError as error:
            self._faults.error(f"an object cannot be decoded: {error}")
            is_foreign = self._is_shared and isinstance(error, UnreadableObjectError)
            return Outcome.FOREIGN if is_foreign else Outcome.DAMAGED
        except SerdeFailedError:
            self._faults.exception("an object was not decoded")
            return Outcome.FAILED
        seal(whole, work.key, header.created_ns)
        if not self.chain.shows_payload_digest:
            return Outcome.DONE
        sealed = inspect(whole[:HEADER_BYTES])
        is_same = isinstance(sealed, ObjectHeader) and sealed.payload_digest == header.payload_digest
        return Outcome.DONE if is_same else Outcome.DAMAGED


def _shown(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names) or "none"
