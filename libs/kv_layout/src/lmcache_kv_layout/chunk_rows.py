"""Tokens between chunks and pages at another position, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.kv_places import KVPlaces
from lmcache_kv_layout.paged_group import PagedGroup
from lmcache_kv_layout.row_job import Move, RowJob, Turn

if TYPE_CHECKING:
    from lmcache_kv_layout.rotary import Rotary

DTYPES = ("float32", "bfloat16", "float16")


class ChunkRows:
    """Moves tokens between chunk objects and pages of one group, K turned to the position where they go.  Threads may share
    one.

    `rotaries`: how K of each layer depends on the position, or one for all layers; None: not at all.  `native`: as for
    `PageCopier`; both implementations write the same bits.
    """

    def __init__(
        self,
        group: PagedGroup,
        rotaries: Rotary | Sequence[Rotary | None] | None,
        head_size: int,
        chunk_tokens: int,
        native: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        """`head_size` is that of K, in elements.  Raises LayoutError, which gives the reason, where the rows of tokens cannot
        be separated or turned."""
        # Only where something will be moved: a server without such workers does not pay for importing numpy.
        from lmcache_kv_layout.native_rows import native_rows
        from lmcache_kv_layout.numpy_rows import WITH_NUMPY

        compiled = None if native == "off" else native_rows(required=native == "on")
        self.native = compiled is not None
        """Whether moves are compiled."""
        self._moves = compiled or WITH_NUMPY
        self._group = group
        self._chunk_slots = group.slots_per_chunk(chunk_tokens)
        self._places = _places(group, head_size)
        self._rotaries = _by_layer(group, rotaries, head_size)

    def read(
        self,
        bases: Sequence[int],
        blocks: Sequence[int],
        region: int,
        tokens: range,
        target: int,
        delta: int,
        *,
        layers: range | None = None,
    ) -> int:
        """Write at once what `prepare` checks; the bytes written.  Raises what both do."""
        return self.prepare(bases, blocks, region, tokens, target, delta, layers=layers)()

    def write(
        self,
        bases: Sequence[int],
        blocks: Sequence[int],
        region: int,
        tokens: range,
        source: int,
        delta: int,
        *,
        layers: range | None = None,
    ) -> int:
        """The reverse: write `tokens` of a chunk as they are in a request from its token `source` on; the bytes written.

        Arguments and errors are those of `prepare`, but that pages are read and the chunk is written.  `delta`: the position
        that the chunk is for, less the one that K was computed at.  Other tokens of the chunk stay as they are.
        """
        return self._prepared(self._moves.write, bases, blocks, region, tokens, source, delta, layers)()

    def prepare(
        self,
        bases: Sequence[int],
        blocks: Sequence[int],
        region: int,
        tokens: range,
        target: int,
        delta: int,
        *,
        layers: range | None = None,
    ) -> Callable[[], int]:
        """What writes `tokens` of a chunk as the tokens of a request from `target` on, and returns the bytes written.

        `bases`: the process address of each of `group.bases`.  `blocks`: ids of the request's blocks from its first token
        on; only those that are written are looked at.  `region`: the address of the group's region in the chunk object.
        `delta`: how far K is turned, the new position less the one that it was computed at; 0 leaves all bits as they are.
        `layers`: only these, a range of step 1.

        Everything is checked here: a `LayoutError` means that no byte was touched. Called, it may raise `MemoryFault`: memory
        vanished, and what was written is undefined. The caller keeps all memory mapped until that call ends.
        """
        return self._prepared(self._moves.read, bases, blocks, region, tokens, target, delta, layers)

    def _prepared(
        self,
        move: Move,
        bases: Sequence[int],
        blocks: Sequence[int],
        region: int,
        tokens: range,
        start: int,
        delta: int,
        layers: range | None,
    ) -> Callable[[], int]:
        job = RowJob.checked(self._group, self._places, self._chunk_slots, bases, blocks, region, tokens, start, layers)
        turns = self._turns(job.layers, delta)

        def run() -> int:
            if job.nbytes:
                move(job, turns)
            return job.nbytes

        return run

    def _turns(self, layers: range, delta: int) -> list[Turn | None]:
        turns: dict[Rotary | None, Turn | None] = {None: None}
        if delta == 0:
            return [None] * len(layers)
        for rotary in self._rotaries[layers.start : layers.stop]:
            if rotary is not None and rotary not in turns:
                turns[rotary] = Turn(*rotary.turn(delta), rotary.style == "gptj")
        return [turns[rotary] for rotary in self._rotaries[layers.start : layers.stop]]


def _places(group: PagedGroup, head_size: int) -> KVPlaces:
    if group.dtype not in DTYPES:
        raise LayoutError(f"K in {group.dtype} cannot be turned; {', '.join(DTYPES)} can")
    if group.recurrent or group.tokens_per_block != group.slots_per_block:
        raise LayoutError(f"{group.format.name}: pages that have no row for each token cannot be moved token by token")
    row = group.head_bytes // group.item_bytes
    if not (head_size == row if group.kv_axis == 2 else 0 < head_size < row):
        raise LayoutError(
            f"{group.format.name}: rows of {row} elements with a head size of {head_size} are not K and V of one token"
        )
    if not group.block_slots:
        return KVPlaces.by_strides(group, head_size)
    if group.places is None:
        raise LayoutError(
            f"the order of elements within blocks of {group.block_slots} slots is not known, so tokens cannot be moved"
        )
    return group.places


def _by_layer(
    group: PagedGroup, rotaries: Rotary | Sequence[Rotary | None] | None, head_size: int
) -> tuple[Rotary | None, ...]:
    found = tuple(rotaries) if isinstance(rotaries, Sequence) else (rotaries,) * group.layers
    if len(found) != group.layers:
        raise LayoutError(f"{len(found)} rotary tables for {group.layers} layers")
    for rotary in found:
        if rotary is not None and rotary.rotary_dim > head_size:
            raise LayoutError(f"a rotary table for {rotary.rotary_dim} elements and heads of {head_size}")
    return found
