"""What the scheduler tells the workers each step, and what they tell it: plain data, pickled between processes.

Block ids are those of vLLM's block tables, one list for each of its KV cache groups. Id 0 is vLLM's null block: nothing
is to be read from it or written to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from lmcache_client.blend import BlendSegment

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Where in a request a segment lies whose chunks are a chain of their own."""

    start: int
    tokens: int

    @property
    def end(self) -> int:
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move the chunks of `[start, end)` of one request between the paged blocks and the server.

    Both bounds are multiples of `chunk_tokens`; the last chunk may be a tail, whose key ends with padding. A worker adds its
    model, world and shard, and has an engine key.
    """

    id: int
    """Names the transfer; never given twice by one scheduler."""
    request_id: str
    tokens: bytes
    """The token ids of `[0, end)` as they stand in a key: an encoded msgpack array."""
    start: int
    end: int
    chunk_tokens: int
    """Of the server that the transfer was planned for. It may have become another one since."""
    block_ids: tuple[tuple[int, ...], ...]
    """For each KV cache group the blocks of `[start, end)`, in order: `(end - start) // block_tokens` ids. In a load
    id 0 marks what must not be written: blocks that vLLM has already, may share, or did not allocate. A store
    has no id 0; in its last chunk, -1 marks blocks that are not part of the tail and become zeros."""
    cache_salt: str = ""
    request_configs: Mapping[str, Any] | None = None
    variant: str = ""
    """Of the model name; empty: requests have the engine's."""
    approximate: bool = False
    """It was computed over KV that is not exact, and has the name of that."""
    segment: SegmentPlace | None = None
    """Tokens and bounds are those of this segment, whose last chunk may be short by any number of tokens. In a store, block_ids
    are the blocks that the segment lies in, from any slot of the first to any of the last, and K is turned to positions of the
    segment. In a chain that is loaded, there are none."""

    @property
    def chunks(self) -> int:
        return (self.end - self.start) // self.chunk_tokens


def kept_id(request_id: str) -> str:
    """Under which a request asks for what an earlier turn has left."""
    return f"{request_id}##blend"


@dataclass(frozen=True, slots=True)
class SegmentChain:
    """The chunks of a segment's chain that a lookup found; they are held for the transfer's own request id."""

    transfer: Transfer
    """Of the whole chain, also of what is not there."""
    found: int
    """Its first chunks."""
    starts: frozenset[int]
    """Where in the prompt those of them begin that are to be written."""


@dataclass(frozen=True, slots=True)
class BlendLoad:
    """Load the prefix and the segments of one request, to be blended when every rank has loaded what it can.

    The request waits outside of the steps until every rank has named it in its finished receives: after its blend, or
    after its `BlendCancel`, once nothing writes its blocks any more.
    """

    prefix: Transfer
    """Of `[0, prefix.end)`, which may be empty (no chunks, no blocks); it names the request and its salt for the segments,
    too. Its id is that of the blend, in all plans and reports."""
    segments: tuple[BlendSegment, ...]
    """As the server gave them, and chunks of `chains`; at least one. All of them begin before `end`. Tokens at `end` and behind
    are not written."""
    end: int
    """Tokens behind it are vLLM's to compute."""
    block_ids: tuple[int, ...]
    """From token 0 on, as many as hold `[0, end)`: a blend has one KV cache group."""
    token_ids: bytes
    """To the end of the last segment: int32 in the order of this machine."""
    selector: str
    ratios: tuple[float, ...]
    kept: frozenset[int] = frozenset()
    """Where those of the segments begin that an earlier turn has left: approximate, but computed for what is before them. They
    are `exact` as to their place, and stored under the approximate name; the server knows them by `kept_id`."""
    chains: tuple[SegmentChain, ...] = ()
    """Of the segments whose `hash` is empty."""

    @property
    def id(self) -> int:
        return self.prefix.id

    @property
    def request_id(self) -> str:
        return self.prefix.request_id


@dataclass(frozen=True, slots=True)
class BlendStep:
    """Go on with a blend on the model's thread. All ranks get the same steps in the same order, and run the same passes.

    It is named in each step until all ranks have named the request as received: a worker ignores it where the blend is over.
    """

    id: int
    start: int
    """The first token that may have to be computed: those before it were loaded by all ranks."""
    loaded: tuple[bool, ...]
    """For each segment: all ranks have it. The tokens of others are a gap."""


@dataclass(frozen=True, slots=True)
class BlendCancel:
    """End a blend in whatever state it is, also in the middle of its loads; a worker ignores it where the blend is over.

    The worker reports the blocks of `[start, end)` as failed, and the request as received; no result."""

    id: int
    start: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One scheduler step: bound to the connector of every worker, also in steps without a forward pass."""

    loads: tuple[Transfer, ...] = ()
    """To be started in this step. Each request waits for its load, and is named in the worker's finished receives
    exactly once, failed or not."""
    stores: tuple[Transfer, ...] = ()
    """To be read from the blocks after this step's forward pass, which writes the last of their tokens."""
    fence: frozenset[int] = frozenset()
    """Earlier stores whose blocks have others now: they must no longer read when this step's forward pass and its loads
    begin to write. Known to the worker before the pass (`handle_preemptions`)."""
    finishing: tuple[str, ...] = ()
    """Requests that are over while vLLM holds their blocks for stores: each to be named in the worker's finished sends
    exactly once, as soon as all of its stores are over. A request that is not named here must not be named there."""
    blend_loads: tuple[BlendLoad, ...] = ()
    """To be started in this step."""
    blends: tuple[BlendStep, ...] = ()
    """Of which this step runs as much as `lmcache.blend_step_tokens` allows, in this order."""
    blend_cancels: tuple[BlendCancel, ...] = ()
    """Before anything else of this step writes blocks."""
    layer_loads: tuple[Transfer, ...] = ()
    """To be loaded inside of this step, each layer before its attention. A request goes on in this step: it is named in
    nothing but failed blocks and the report."""
    layer_stores: tuple[Transfer, ...] = ()
    """As `stores`, each layer copied when its attention is over. A worker stores none of them where one of `layer_loads` fails;
    with several workers no step has both."""
    idle: bool = False
    """No token is computed for any request in this step, blends aside."""


@dataclass(frozen=True, slots=True)
class BlendLoaded:
    """What ranks have loaded for a blend."""

    ranks: int
    """How many ranks speak."""
    prefix: bool
    """All of them have all of it; also where it is empty."""
    segments: tuple[bool, ...]
    """For each segment: all of them have it."""

    def merged(self, other: BlendLoaded) -> BlendLoaded:
        both = zip(self.segments, other.segments, strict=True)
        return BlendLoaded(
            self.ranks + other.ranks,
            self.prefix and other.prefix,
            tuple(one and another for one, another in both),
        )


@dataclass(frozen=True, slots=True)
class BlendResult:
    """How the passes of a blend ended. Tokens of `[start, end)`, each counted once."""

    reused: int
    """As they were loaded."""
    recomputed: int
    """Loaded, and computed again."""
    gaps: int
    """Computed because nothing was loaded for them."""
    failed: str = ""
    """A word for the reason, for a counter; empty: it went well. The worker reports blocks from that of `start` on as failed
    then."""

    def merged(self, other: BlendResult) -> BlendResult:
        """Of another rank: it differs in its failure alone."""
        return max(self, other, key=lambda result: (bool(result.failed), result.reused))


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What became of transfers since the last report; vLLM adds up the reports of all workers."""

    over: Mapping[int, int]
    """By the id of a transfer: how many workers are done with it, however it ended. Every worker reports each load and
    each store of a plan once, one that has no part in it (a reader of a shard that another one stores) at once."""
    failed_loads: frozenset[str] = frozenset()
    """Requests of which a load failed, as a whole or in part."""
    model_names: frozenset[str] = frozenset()
    """Names that the reporting workers registered their KV cache under: one, unless workers differ. Each worker sends a
    report with its name after its first step, even if no transfer is over."""
    blend_loaded: Mapping[int, BlendLoaded] = field(default_factory=dict)
    """By the id of a blend whose loads are over, however they ended. Each rank reports each `BlendLoad` once, if need be with
    nothing loaded; after a `BlendCancel` it need not."""
    blend_results: Mapping[int, BlendResult] = field(default_factory=dict)
    """By the id of a blend, with the finished receive of its request or before it."""
    blend_refused: frozenset[str] = frozenset()
    """Why this worker does not blend at all, in words for a log. It names them in its first report or later, once or often."""

    def aggregate(self, other: WorkerReport) -> Self:
        return type(self)(
            dict(Counter(self.over) + Counter(other.over)),
            self.failed_loads | other.failed_loads,
            self.model_names | other.model_names,
            _merged(self.blend_loaded, other.blend_loaded, BlendLoaded.merged),
            _merged(self.blend_results, other.blend_results, BlendResult.merged),
            self.blend_refused | other.blend_refused,
        )


def _merged(one: Mapping[int, _T], other: Mapping[int, _T], both: Callable[[_T, _T], _T]) -> dict[int, _T]:
    """All of them; `both` merges those that are in both."""
    return {**one, **{key: both(one[key], value) if key in one else value for key, value in other.items()}}


@dataclass(frozen=True, slots=True)
class TransferResults:
    """Requests whose transfers came to an end on one worker."""

    finished_sending: frozenset[str] = frozenset()
    finished_recving: frozenset[str] = frozenset()
    failed_recving: frozenset[str] = frozenset()
    """Those of `finished_recving` to be computed from their first token. Only for models of several KV cache groups, or with
    a window: otherwise failed blocks are named one by one."""
