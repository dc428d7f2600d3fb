"""As demo/engine.py, with small steps, blocks that windows free, and copies as slow as those of a large model.

vLLM starts its workers with this module, so that their copies are slow as well.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from demo.engine import engine_options, parse_arguments, run
from lmcache_vllm import worker
from lmcache_vllm.transfer_pages import ChunkPages

STEP_TOKENS = 512
WINDOWED = {"disable_hybrid_kv_cache_manager": False, "max_num_batched_tokens": STEP_TOKENS}
ANSWER_SECONDS = 0.5
"""For the server's answer to a store: other tests may have the processor."""
COPY_SECONDS = 1.0
"""What a gigabyte or so takes."""

worker.FENCE_SECONDS = ANSWER_SECONDS  # type: ignore[misc]
worker.COPY_SECONDS = 10 * COPY_SECONDS  # type: ignore[misc]
_gather = ChunkPages.gather


def _slow_gather(*args: Any) -> int:
    time.sleep(COPY_SECONDS)
    return _gather(*args)


ChunkPages.gather = _slow_gather  # type: ignore[method-assign, assignment]


def tell_failures(engine: Any) -> None:
    """What went wrong between the engine and the cache so far, for the reader of a failed test's log."""
    named = (metric for metric in engine.get_metrics() if metric.name.startswith("vllm:lmcache_failed"))
    failures = {f"{metric.name} {metric.labels.get('reason')}": int(metric.value) for metric in named if metric.value}
    print("failures", failures, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(engine_options(parse_arguments()) | WINDOWED, tell_failures)
