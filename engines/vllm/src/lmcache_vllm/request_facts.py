"""What the scheduler side knows of vLLM's requests and steps: plain data, so that it can be run without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.handoffs import Handoff
from lmcache_vllm.prompt_identity import Placeholder

BlockTable = Sequence[Sequence[int]]
"""Block ids by KV cache group, from the first token on; id 0 where vLLM has no block (any more)."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """A request as it came."""

    request_id: str
    tokens: Sequence[int]
    """vLLM's own list, which grows as tokens are generated."""
    prompt_tokens: int
    cache_salt: str = ""
    placeholders: tuple[Placeholder, ...] = ()
    adapter: str = ""
    """Content of the LoRA adapter that it is computed with; empty: none."""
    configs: Mapping[str, Any] | None = None
    """The `lmcache.*` entries of the request's kv_transfer_params."""
    handoff: Handoff | None = None
    """That it gives or takes."""
    blend: BlendChoice | None = None
    """None: it is not to be blended."""
    looks_up: bool = True
    """False where vLLM would not use what is found."""
    skip_reason: str = ""
    """Why the request can be neither looked up nor stored; empty if it can."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What vLLM is about to run."""

    scheduled: Mapping[str, tuple[int, int]]
    """By request: tokens whose KV is there before the step, and how many the step computes behind them."""
    block_table: Callable[[str], BlockTable]
    """The blocks of a scheduled request, as this step's forward pass uses them."""
    preempted: frozenset[str] = frozenset()
    """Requests that lost their blocks since the last step."""
    new_blocks: Sequence[tuple[int, BlockTable]] = ()
    """Blocks that scheduled requests were given for this step, and may write: those of each table from the one on that
    holds the token."""
