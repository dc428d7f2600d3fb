"""A transfer to or from a file, cut as O_DIRECT wants it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_l2_nixl.pieces import BLOCK_BYTES, Descriptors, file_transfers
from lmcache_nixl_agent.agent import Extent


@given(length=st.integers(1, 5 * BLOCK_BYTES), blocks=st.integers(0, 9), rest=st.booleans(), writes=st.booleans())
def test_the_pieces_of_a_transfer_cover_it_once(length: int, blocks: int, rest: bool, writes: bool) -> None:
    file = Descriptors(5, 6 if rest else None)
    memory, offset = Extent(2**30, length), blocks * BLOCK_BYTES
    pieces = file_transfers(file, offset, memory, writes=writes)
    at = 0
    for piece in pieces:
        assert piece.writes is writes
        assert (piece.memory.at - memory.at, piece.place.at - offset) == (at, at)
        assert piece.memory.length == piece.place.length > 0
        if rest:
            whole = at % BLOCK_BYTES == 0 and piece.memory.length % BLOCK_BYTES == 0
            assert piece.place.device == (5 if whole else 6)
        at += piece.memory.length
    assert at == length
