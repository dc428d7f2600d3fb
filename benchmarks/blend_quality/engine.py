"""The engine of this benchmark: `demo/engine.py` with the worker that blends, and with the selectors to compare with.

Runs in the engine's environment.
"""

from __future__ import annotations

from benchmarks.blend_quality.selectors import installed
from demo.engine import engine_options, parse_arguments, run

if __name__ == "__main__":
    with installed():
        run(engine_options(parse_arguments()) | {"worker_cls": "lmcache_vllm.BlendWorker"})
