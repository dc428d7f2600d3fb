"""Sizes in GiB are exact to the byte, and what a caller says is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmcache_coordinator.models import GIB, Register, gigabytes
from lmcache_coordinator.routing import PROMPT_TOKENS_MAX


@given(st.integers(0, 2**48))
def test_a_size_in_gib_is_the_same_number_of_bytes(size_bytes: int) -> None:
    assert round(gigabytes(size_bytes) * GIB) == size_bytes


def test_a_chunk_is_no_longer_than_a_prompt() -> None:
    """The coordinator hashes a chunk of this size."""
    Register.model_validate({"instance_id": "a", "chunk_tokens": PROMPT_TOKENS_MAX})
    with pytest.raises(ValidationError, match="less than or equal to 1048576"):
        Register.model_validate({"instance_id": "a", "chunk_tokens": PROMPT_TOKENS_MAX + 1})
