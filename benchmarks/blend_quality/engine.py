"""The engine of this benchmark: `demo/engine.py` with the worker that blends, and with the selectors to compare with.

Runs in the engine's environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from benchmarks.blend_quality.selectors import NOT_TURNED, installed
from demo.engine import engine_options, parse_arguments, run
from lmcache_vllm.blend_load import load_blend
from lmcache_vllm.blend_pages import BlendPages
from lmcache_vllm.metadata import BlendLoad


class _NotTurned:
    """Pages whose K stays as it was stored."""

    def __init__(self, pages: BlendPages) -> None:
        self._pages = pages

    def write(
        self, chunk: int, chunk_tokens: int, tokens: range, block_ids: Sequence[int], target: int, _delta: int
    ) -> int:
        return self._pages.write(chunk, chunk_tokens, tokens, block_ids, target, 0)


def _load(task: Any, order: BlendLoad, session: Any, placement: Any, pages: Any) -> Any:
    used: Any = _NotTurned(pages) if order.selector == NOT_TURNED else pages
    return load_blend(task, order, session, placement, used)


if __name__ == "__main__":
    # The connector has no switch for what would only be wrong.
    with installed(), patch("lmcache_vllm.worker.load_blend", _load):
        run(engine_options(parse_arguments()) | {"worker_cls": "lmcache_vllm.BlendWorker"})
