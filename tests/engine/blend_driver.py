"""As demo/engine.py, in an engine that blends, which a test can change while it runs.

Behind the model it is given a file of JSON that the test writes before it asks.  `vllm` are options of the engine, read when it
starts, and `installed` is a folder of distributions that it finds then; `row_tokens` cuts the rows of passes, `step_tokens`
their slices; `fault` is a planted one: `unturned`, `swapped` and `repeated` segments, a `pass` that fails, and one that
fails on a `rank` alone; from the start a wrong `base` of the rotation.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.distributed import get_tp_group

from demo.engine import engine_options, parse_arguments, run
from lmcache_kv_layout import Rotary
from lmcache_vllm import blend_gate, blend_load, blend_ranks, blending
from lmcache_vllm.blend_pages import BlendPages
from lmcache_vllm.blend_pass import ModelPass

FILE = "BLEND_CONTROL"
if FILE not in os.environ:  # otherwise this is a worker with a process of its own
    os.environ[FILE] = sys.argv.pop(2)
CONTROL = Path(os.environ[FILE])
_write, _read, _runs_of = BlendPages.write, blend_load._read, blending.runs_of
_step_as_set, _rotary, _run = blending.Blending.step, Rotary, ModelPass.run


def _control(name: str) -> Any:
    return json.loads(CONTROL.read_text()).get(name)


if installed := _control("installed"):
    sys.path.append(installed)


def _cut_runs(mask: Any) -> tuple[range, ...]:
    tokens = _control("row_tokens") or len(mask)

    def cut() -> Iterator[range]:
        for whole in _runs_of(mask):
            for start in range(whole.start, whole.stop, tokens):
                yield range(start, min(start + tokens, whole.stop))

    return tuple(cut())


def _write_wrong(self: Any, chunk: int, chunk_tokens: int, tokens: range, blocks: Any, target: int, delta: int) -> int:
    return _write(self, chunk, chunk_tokens, tokens, blocks, target, 0 if _control("fault") == "unturned" else delta)


def _read_wrong(task: Any, order: Any, registration: Any, slots: Any, pages: Any) -> Any:
    wrong = {"swapped": slots[::-1], "repeated": [*slots[:1], *slots[:-1]]}.get(_control("fault"), slots)
    return _read(task, order, registration, wrong, pages)


def _step(self: Any, steps: Any) -> Any:
    self._tokens_max = _control("step_tokens") or self._tokens_max
    return _step_as_set(self, steps)


def _run_or_fail(self: Any, batch: Any, entry: Any = None) -> None:
    fault = _control("fault")
    if fault == "pass":
        raise RuntimeError("planted")
    if fault == "rank" and get_tp_group().rank_in_group == 1:
        raise RuntimeError("planted")
    _run(self, batch, entry)


def _wrong_rotary(table: Any, style: Any) -> Rotary:
    """Twice as fast, so that it has the shape of a right one."""
    return _rotary(table[: len(table) // 2 * 2 : 2] if _control("fault") == "base" else table, style)


for owner, name, planted in (
    (blend_gate, "Rotary", _wrong_rotary),
    (BlendPages, "write", _write_wrong),
    (blend_load, "_read", _read_wrong),
    (blending, "runs_of", _cut_runs),
    (blending.Blending, "step", _step),
    (ModelPass, "run", _run_or_fail),
    (blend_ranks, "PEERS_SECONDS", 2.0),
):
    setattr(owner, name, planted)

if __name__ == "__main__":
    run(engine_options(parse_arguments()) | {"worker_cls": "lmcache_vllm.BlendWorker"} | (_control("vllm") or {}))
