"""Sizes in GiB are exact to the byte."""

from hypothesis import given
from hypothesis import strategies as st

from lmcache_coordinator.models import GIB, gigabytes


@given(st.integers(0, 2**48))
def test_a_size_in_gib_is_the_same_number_of_bytes(size_bytes: int) -> None:
    assert round(gigabytes(size_bytes) * GIB) == size_bytes
