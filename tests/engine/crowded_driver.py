"""As demo/engine.py, with blocks for a few requests only: requests are preempted, and resumed later.

The last line on stderr behind each command says how often that happened.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from demo.engine import WARM_UP, answer, engine_options, parse_arguments, private_stdout

BLOCKS = 130
STEP_TOKENS = 512


def preemptions(engine: Any) -> int:
    return int(sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions"))


def main() -> None:
    from vllm import LLM

    options = engine_options(parse_arguments()) | {
        "num_gpu_blocks_override": BLOCKS,
        "max_num_batched_tokens": STEP_TOKENS,
        "enable_prefix_caching": True,
        "async_scheduling": True,
    }
    pipe = private_stdout()
    engine = LLM(**options)
    answer(engine, WARM_UP)
    print(json.dumps({"ready": True}), file=pipe)
    for line in sys.stdin:
        results = answer(engine, line)
        engine.reset_prefix_cache()
        print(f"preemptions={preemptions(engine)}", file=sys.stderr, flush=True)
        for result in results:
            print(json.dumps(result), file=pipe)


if __name__ == "__main__":
    main()
