"""What vLLM's scheduler and its worker have in common in miniature: requests, and steps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmcache_vllm.metadata import StepPlan
from lmcache_vllm.request_facts import RequestFacts


def kv_of(salt: str, tokens: Sequence[int], position: int) -> int:
    return hash((salt, tuple(tokens[: position + 1])))


def next_token(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens)) % 50


@dataclass
class Request:
    """`tokens` is what vLLM knows; `truth` what the model will have said, as far as it was computed."""

    facts: RequestFacts
    tokens: list[int]
    max_tokens: int
    status: str = "waiting"
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    in_flight: int = 0
    truth: list[int] = field(default_factory=list)
    life: int = 0
    """Counts preemptions: what an older life computed is not delivered."""

    def __repr__(self) -> str:
        return f"{self.id} {self.status} {self.computed}/{len(self.tokens)}"

    @property
    def id(self) -> str:
        return self.facts.request_id

    @property
    def target(self) -> int:
        return self.facts.prompt_tokens + self.max_tokens


@dataclass
class Write:
    """Tokens of one request in one step, and where their KV goes."""

    request: Request
    start: int
    count: int
    tables: list[list[int]]
    life: int


@dataclass
class Step:
    plan: StepPlan
    writes: list[Write]
    freed: list[int] = field(default_factory=list)
    """Blocks that are free once it ran."""
