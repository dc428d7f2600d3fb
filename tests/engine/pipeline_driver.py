"""As demo/engine.py, with a pipeline of stages: `--stages 2,2` is how many layers each has."""

from __future__ import annotations

import os
import sys

from demo.engine import engine_options, parse_arguments, run


def main() -> None:
    place = sys.argv.index("--stages")
    stages = sys.argv[place + 1]
    del sys.argv[place : place + 2]
    os.environ["VLLM_PP_LAYER_PARTITION"] = stages
    # On the CPU, vLLM makes the buffers between stages when it compiles, and not without.
    compiled = {"enforce_eager": False, "compilation_config": {"mode": 3, "backend": "eager"}}
    run(engine_options(parse_arguments()) | compiled | {"pipeline_parallel_size": len(stages.split(","))})


if __name__ == "__main__":
    main()
