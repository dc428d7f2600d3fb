"""As demo/engine.py, with blocks for a few requests only: requests are preempted, and resumed later.

The last line on stderr behind each command says how often that happened.
"""

from __future__ import annotations

import sys
from typing import Any

from demo.engine import engine_options, parse_arguments, run

BLOCKS = 130
STEP_TOKENS = 512
CROWDED = {
    "num_gpu_blocks_override": BLOCKS,
    "max_num_batched_tokens": STEP_TOKENS,
    "enable_prefix_caching": True,
    "async_scheduling": True,
}


def begin_anew(engine: Any) -> None:
    engine.reset_prefix_cache()
    preemptions = sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")
    print(f"preemptions={int(preemptions)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(engine_options(parse_arguments()) | CROWDED, begin_anew)
