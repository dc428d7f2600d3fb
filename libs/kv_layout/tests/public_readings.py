"""Run by the engine environment's interpreter: what the public package makes of tensors, beside what we make of them.

Prints a JSON list of [case, theirs, ours]; a reading is format, layers, kv axis, slots of a block, row elements, or an error.
"""

from __future__ import annotations

import json
import logging
from itertools import product
from typing import Any

logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from lmcache.utils import EngineType  # noqa: E402
from lmcache.v1.gpu_connector import utils as theirs  # noqa: E402
from lmcache.v1.gpu_connector.kv_format.detection import detect_format  # noqa: E402

from lmcache_kv_layout import LayoutHints, TensorView, detect_groups  # noqa: E402

LAYERS, BLOCKS, SLOTS, WIDTH = 3, 7, 16, 32


def view(tensor: Any) -> TensorView:
    return TensorView(str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def their_reading(caches: Any, engine: str, hints: dict[str, Any]) -> list[int] | str:
    try:
        format, caches = detect_format(caches, EngineType(engine), hints)
        rows = (theirs.get_block_size(caches, format), theirs.get_hidden_dim_size(caches, format))
        fused = 2 if int(format) in (10, 11) else 1
        layers = theirs.get_num_layers(caches, format)
        return [int(format), layers, theirs.get_kv_size(caches, format), rows[0], rows[1] * fused]
    except ValueError:
        return "refused"


def our_reading(caches: Any, engine: str, hints: dict[str, Any]) -> list[int] | str:
    if isinstance(caches, torch.Tensor):
        entries: list[Any] = [view(caches)]
    else:
        entries = [tuple(map(view, entry)) if isinstance(entry, list) else view(entry) for entry in caches]
    try:
        (group,) = detect_groups(entries, LayoutHints(**hints), device="cpu", engine=engine)
    except ValueError:
        return "refused"
    row = group.token_bytes // group.item_bytes
    return [int(group.format), group.layers, group.kv_axis, group.slots_per_block, row]


def cases() -> Any:
    for heads, kv_layout in product([1, 2, 4], ["HND", "NHD"]):
        inner = (heads, SLOTS) if kv_layout == "HND" else (SLOTS, heads)
        hints = {"kv_layout": kv_layout}
        shapes = [(BLOCKS, *inner, 2 * WIDTH), (2, BLOCKS, *inner, WIDTH), (BLOCKS, 2, *inner, WIDTH)]
        for shape in shapes:
            for exchanged in (False, True):
                caches = [torch.zeros(shape) for _ in range(LAYERS)]
                if exchanged:
                    caches = [cache.transpose(-3, -2) for cache in caches]
                yield f"vllm {shape} {kv_layout} exchanged={exchanged}", caches, "vllm", hints
        padded = [
            torch.zeros(BLOCKS, inner[0] * inner[1] * WIDTH + 64)[:, :-64].view(BLOCKS, *inner, WIDTH) for _ in range(2)
        ]
        yield f"vllm padded {inner} {kv_layout}", padded, "vllm", hints
        pool = torch.zeros(BLOCKS, LAYERS, *inner, WIDTH)
        yield f"vllm blocks outermost {inner}", [pool[:, layer] for layer in range(LAYERS)], "vllm", hints
    yield "vllm mla", [torch.zeros(BLOCKS, SLOTS, 576) for _ in range(LAYERS)], "vllm", {}
    yield "vllm no hint", [torch.zeros(BLOCKS, 4, SLOTS, WIDTH) for _ in range(LAYERS)], "vllm", {}
    yield "vllm one tensor", torch.zeros(BLOCKS, LAYERS, 2, SLOTS, 4, WIDTH), "vllm", {"kv_layout": "NHD"}
    yield "vllm singleton", [torch.zeros(2, BLOCKS, 4, 1, SLOTS, WIDTH) for _ in range(LAYERS)], "vllm", {}
    yield (
        "vllm pairs",
        [[torch.zeros(BLOCKS, SLOTS, 4, WIDTH)] * 2 for _ in range(LAYERS)],
        "vllm",
        {"kv_layout": "NHD"},
    )
    yield "vllm unknown", [torch.zeros(BLOCKS, 3, SLOTS, 4, WIDTH) for _ in range(LAYERS)], "vllm", {"kv_layout": "NHD"}
    for heads in (1, 4):
        folded = [torch.zeros(BLOCKS * SLOTS, heads, WIDTH) for _ in range(2 * LAYERS)]
        unified = [torch.zeros(BLOCKS, SLOTS, heads, WIDTH) for _ in range(LAYERS)]
        yield f"sglang k_v {heads}", folded, "sglang", {"kv_list_layout": "k_v", "tokens_per_block": SLOTS}
        yield f"sglang unified {heads}", unified, "sglang", {"kv_list_layout": "unified"}
    latent = [torch.zeros(BLOCKS * SLOTS, 1, WIDTH) for _ in range(LAYERS)]
    yield "sglang mla", latent, "sglang", {"tokens_per_block": SLOTS}
    yield "sglang unified mla", [torch.zeros(BLOCKS, SLOTS, WIDTH)] * LAYERS, "sglang", {"kv_list_layout": "unified"}
    pool = torch.zeros(BLOCKS, LAYERS, 2, 4 * SLOTS * WIDTH)
    yield "trtllm", [pool], "trtllm", {"num_kv_heads": 4, "tokens_per_block": SLOTS, "head_dim": WIDTH}


if __name__ == "__main__":
    print(json.dumps([[name, their_reading(*case), our_reading(*case)] for name, *case in cases()]))
