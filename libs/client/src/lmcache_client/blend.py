"""Blending: KV of chunks that are stored for other prompts, or elsewhere in this one, found by their tokens.

A segment is one chunk of the prompt whose tokens a stored chunk has.  Its KV is that of the place where it was stored: unless
the segment is exact, it is to be turned to its new place, and it has not seen the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lmcache_client.engine_key import EngineKey
from lmcache_client.messages import SlotDescriptor
from lmcache_client.operations import Operation


class BlendSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens `[start, end)` of a prompt are tokens `[old_start, old_end)` of a prompt that was stored."""

    old_start: int
    old_end: int
    start: int
    end: int
    hash: bytes
    """Of the stored chunk."""
    exact: bool = False
    """It is the prompt's own chunk at its own place: every token before it is the same, too."""
    follows: bool = False
    """It goes on where the segment before it ends, in the prompt and in the stored one: between them there is no seam."""


class BlendMatch(msgspec.Struct, frozen=True, gc=False):
    """Tokens `[cur_st, cur_ed)` of a prompt are tokens `[old_st, old_ed)` of what the chunk was stored with: a segment as it is
    in the requests `cb_...`."""

    old_st: int
    old_ed: int
    cur_st: int
    cur_ed: int
    hash: bytes


class BlendAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What is there of a prompt, and held for its workers."""

    prefix_tokens: int = 0
    segments: tuple[BlendSegment, ...] = ()
    """Behind the prefix, ascending and disjoint."""


class BlendSlots(msgspec.Struct, frozen=True, array_like=True):
    """Where the segments that were asked for lie."""

    slots: tuple[SlotDescriptor | None, ...] = ()
    """One for each segment, in order; None where it is not there any more.  Empty: the request was refused."""

    def of(self, count: int) -> Sequence[SlotDescriptor | None]:
        """A slot or None for each of the `count` segments that were asked for, also where the request was refused."""
        return self.slots if len(self.slots) == count else (None,) * count


class RopeTables(NamedTuple):
    """How K of a worker's layers depends on the position, as engines say it whose pages the server fills."""

    tables: Sequence[msgspec.msgpack.Ext]
    """Tensors `[position, cosines | sines]`, described as those of the KV cache are."""
    head_size: int
    is_neox: bool
    table_of: Sequence[int]
    """By engine group: an index of `tables`, or -1 where K is not turned.  Empty: the first one for all."""
    windows: Sequence[Sequence[int]]
    """By engine group: the first element of a head that is turned, and how many; an empty one where K is not turned.  Empty:
    as many as the table has, from the first one on."""
    head_sizes: Sequence[int]
    """By engine group.  Empty: `head_size` for all."""


# By name only.
# The prompt, and seconds.  Answered when it is known what is there, after the seconds in any case, with nothing then.  What was
# found is held as by `lookup`, under the key's request id; `end_session` releases what no worker has picked up.
BLEND_LOOKUP = Operation("blend_lookup", None, (EngineKey, float), BlendAnswer, BlendAnswer())
# The prompt with the worker's id, segments of the answer, and the instance id.
BLEND_PREPARE = Operation("blend_prepare", None, (EngineKey, tuple[BlendSegment, ...], int), BlendSlots, BlendSlots())
# The request id, and the instance id.  Follows each BLEND_PREPARE, one that was refused, too: as many commits as there were
# prepares end all reads of segments that this instance has of this request.
BLEND_COMMIT = Operation("blend_commit", None, (str, int), bool, True)
