"""A serde that is right keeps the requirements, and serdes that break one are found by it."""

from __future__ import annotations

import zlib

import pytest

from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.errors import DamagedObjectError
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.serde_suite import LAYOUTS, SerdeSuite
from plugins.serde.tests.chain.serdes import Deflate, HalfPrecision

FLOATS = LAYOUTS[1]


class DeclaresTooSmallABound(HalfPrecision):
    error_bound = 2**-16


class CallsItselfLossless(HalfPrecision):
    lossless = True


class LongParameters(Deflate):
    def parameters(self) -> bytes:
        return bytes(65)


class ChangesThePayload(Deflate):
    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        length = super().encode(key, layout, payload, into)
        if not payload.readonly:
            payload[0] ^= 1
        return length


class RemembersTheObject(Deflate):
    """Decodes with what it kept from encoding."""

    last = b""

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        self.last = bytes(payload)
        return super().encode(key, layout, payload, into)

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        if not self.last:
            raise KeyError("never seen")
        into[:] = self.last


class RaisesWhatItLikes(Deflate):
    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        into[:] = zlib.decompress(stored)


class LeavesWhatWasThere(Deflate):
    """What is short is taken for what belongs there, and the rest of the memory stays as it was."""

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        try:
            payload = zlib.decompressobj().decompress(stored, len(into))
        except zlib.error as error:
            raise DamagedObjectError(str(error)) from None
        into[: len(payload)] = payload


class WritesTooMuch(Deflate):
    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return 8


class AsksForLessWhereItGetsMore(Deflate):
    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return super().stored_bytes_max(layout) + 64 * (layout.payload_bytes % 8 == 0)


class DropsTheLastByte(Deflate):
    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        stored = zlib.compress(bytes(payload[:-1]) + b"\0", 1)
        into[: len(stored)] = stored
        return len(stored)


BROKEN = "test_bytes_that_were_never_written_are_rejected_or_harmless"
KILLED_BY = {
    DeclaresTooSmallABound: "test_what_went_in_comes_back",
    CallsItselfLossless: "test_what_went_in_comes_back",
    DropsTheLastByte: "test_what_went_in_comes_back",
    LongParameters: "test_parameters_fit_into_the_header_and_stay_the_same",
    ChangesThePayload: "test_nothing_is_written_beyond_what_was_asked_for",
    WritesTooMuch: "test_nothing_is_written_beyond_what_was_asked_for",
    RemembersTheObject: "test_another_instance_reads_what_one_wrote",
    RaisesWhatItLikes: BROKEN,
    LeavesWhatWasThere: BROKEN,
    AsksForLessWhereItGetsMore: "test_its_bound_does_not_fall_where_the_payload_grows",
}
REQUIREMENTS = sorted(name for name in dir(SerdeSuite) if name.startswith("test_"))


class Direct:
    """Replaces an offer that is not installed."""

    def __init__(self, kind: type[Serde]) -> None:
        self._kind = kind

    def open(self) -> Serde:
        return self._kind()


def judge(kind: type[Serde], requirement: str, layout: ObjectLayout) -> None:
    """Call one requirement with what its fixtures would give it."""
    method = getattr(SerdeSuite(), requirement)
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    for content in ("random", "constant", "tensor") if "content" in names else ("",):
        fixtures = {"serde": kind(), "layout": layout, "content": content, "under_test": Direct(kind)}
        method(**{name: fixtures[name] for name in names})


@pytest.mark.parametrize("requirement", REQUIREMENTS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.dtype)
def test_a_serde_that_is_right_keeps_every_requirement(layout: ObjectLayout, requirement: str) -> None:
    judge(Deflate, requirement, layout)


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_so_does_a_lossy_one(requirement: str) -> None:
    judge(HalfPrecision, requirement, FLOATS)


@pytest.mark.parametrize("mutant", KILLED_BY, ids=lambda kind: kind.__name__)
def test_a_planted_bug_is_found_by_the_requirement_that_is_about_it(mutant: type[Serde]) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        judge(mutant, KILLED_BY[mutant], FLOATS)
