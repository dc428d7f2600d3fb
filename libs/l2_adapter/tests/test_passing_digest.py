from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import HEADER_BYTES, Outcome, check
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_l2_adapter import PassingDigest

KEY = object_key(1)


@given(st.binary(min_size=1, max_size=3 * HEADER_BYTES), st.lists(st.integers(0, 4 * HEADER_BYTES), max_size=8))
def test_the_digest_is_that_of_the_payload_wherever_the_bytes_are_cut(payload: bytes, cuts: list[int]) -> None:
    whole = BorrowedMemory(64 << 10).sealed(KEY, payload).view
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    digest = PassingDigest()
    for start, end in zip([0, *ends], ends, strict=False):
        digest.passed(whole[start:end])
    assert check(whole, KEY, digest.digest()).outcome is Outcome.DONE
    altered = memoryview(bytearray(whole))
    altered[-1] ^= 1
    again = PassingDigest()
    again.passed(altered)
    assert check(altered, KEY, again.digest()).outcome is Outcome.DAMAGED
