"""The scheduler side of one engine, asked as vLLM asks it, in front of a server that a test holds in its hand."""

from __future__ import annotations

from collections.abc import Sequence

from engines.vllm.tests.fake_server import FakeServer
from lmcache_vllm.metadata import StepPlan
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import BlockTable, RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.settings import Settings

CHUNK = 8
SETTINGS = Settings(lookup_timeout_ms=300)
TABLE = [list(range(1, 20))]
PROMPT = RequestFacts("r", list(range(100, 132)), 32)


class Rig:
    def __init__(
        self,
        settings: Settings = SETTINGS,
        *,
        at_once: bool = True,
        workers: int = 1,
        stores: bool = True,
        loads: bool = True,
        window_tokens: int = -1,
        patience_seconds: float = 0.0,
        model_name: str = "model",
        blends: bool = False,
        separator: Sequence[int] = (),
    ) -> None:
        self.now = 0.0
        self.server = FakeServer(CHUNK, answers_at_once=at_once, blends=blends, ranks=workers)
        self.side = SchedulerSide(
            settings,
            Placement(model_name, 2, 0, readers=3),
            (CacheGroup(("layer",), 4, window_tokens),),
            self.server,
            workers=workers,
            stores=stores,
            loads=loads,
            separator=separator,
            clock=lambda: self.now,
            patience_seconds=patience_seconds,
        )

    def store(self, facts: RequestFacts, tokens: int) -> None:
        """As if another engine had."""
        for chunk in range(tokens // CHUNK):
            self.server.objects[self.server.name(facts, facts.tokens, chunk)] = ()

    def step(
        self,
        computed: int = 0,
        count: int = 0,
        request: str = "r",
        preempted: frozenset[str] = frozenset(),
        new_blocks: Sequence[tuple[int, BlockTable]] = (),
    ) -> StepPlan:
        scheduled = {request: (computed, count)} if count else {}
        return self.side.plan(StepFacts(scheduled, lambda _: TABLE, preempted, new_blocks))

    def load(self, facts: RequestFacts, computed: int = 0) -> StepPlan:
        self.side.on_new_request(facts)
        external, _ = self.side.matched_tokens(facts.request_id, computed)
        assert external is not None
        self.side.on_allocated(facts.request_id, TABLE, external)
        return self.step()
