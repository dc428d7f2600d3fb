"""A whole server with an engine and an operator, who lists, deletes, prefetches, pins and sums up what is cached."""

from __future__ import annotations

from typing import Any, NamedTuple

from core.tests.server.cache_resource import Operator, prompt, wait_until
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

A, B = prompt(1), prompt(2)


class Site(NamedTuple):
    server: Server
    operator: Operator
    engine: FakeEngine

    def in_both_tiers(self, *prompts: list[int]) -> None:
        for number, tokens in enumerate(prompts):
            assert self.engine.store(tokens, f"store-{number}")
            self.engine.end(f"store-{number}")
        wait_until(lambda: self.held() == 0)

    def held(self) -> int:
        return int(self.server.status()["l1"]["held"])

    def in_l2_alone(self, *prompts: list[int]) -> None:
        self.in_both_tiers(*prompts)
        self.operator.post("/cache/clear", {})
        assert self.operator.entries("tier=l1") == []

    def named(self, tokens: list[int], **more: Any) -> dict[str, Any]:
        return {"model_name": "model", "token_ids": tokens, **more}

    def finished(self, request_id: str) -> dict[str, Any]:
        def is_over() -> bool:
            return bool(self.operator.get(f"/cache/prefetches/{request_id}")["status"] != "pending")

        wait_until(is_over)
        progress: dict[str, Any] = self.operator.get(f"/cache/prefetches/{request_id}")
        return progress
