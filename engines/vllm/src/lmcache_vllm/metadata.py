"""What the scheduler tells the workers each step, and what they tell it: plain data, pickled between processes.

Block ids are those of vLLM's block tables, one list for each of its KV cache groups. Id 0 is vLLM's null block: nothing
is to be read from it or written to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


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

    @property
    def chunks(self) -> int:
        return (self.end - self.start) // self.chunk_tokens


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

    def aggregate(self, other: WorkerReport) -> Self:
        return type(self)(
            dict(Counter(self.over) + Counter(other.over)),
            self.failed_loads | other.failed_loads,
            self.model_names | other.model_names,
        )


@dataclass(frozen=True, slots=True)
class TransferResults:
    """Requests whose transfers came to an end on one worker."""

    finished_sending: frozenset[str] = frozenset()
    finished_recving: frozenset[str] = frozenset()
    failed_recving: frozenset[str] = frozenset()
    """Those of `finished_recving` to be computed from their first token. Only for models of several KV cache groups, or with
    a window: otherwise failed blocks are named one by one."""
