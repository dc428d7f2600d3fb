"""Where vLLM's kernels for this CPU put K and V of a token, beside what servers take as known.  Runs in the engine's
environment; prints a line for each configuration."""

from __future__ import annotations

import numpy as np
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from lmcache_kv_layout import KVPlaces, LayoutHints, TensorView, detect_groups

BLOCKS, HEADS, BLOCK = 4, 2, 2
BITS = 6
"""Of a number that are written at once: exact in every type."""


def seen(isa: str, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of the elements in a block, `[head][place]`; `numbers` are `[K or V][slot][head][element]`."""
    _, slots, heads, size = numbers.shape
    found = torch.zeros(heads, slots * 2 * size, dtype=torch.int64)
    for shift in range(0, int(numbers.max()).bit_length(), BITS):
        cache = torch.zeros(BLOCKS, heads, slots, 2 * size, dtype=dtype)
        halves = cache.view(BLOCKS, heads, slots * 2, size).chunk(2, dim=2)
        key, value = ((numbers >> shift) & (1 << BITS) - 1).to(dtype)
        mapping = torch.arange(BLOCK * slots, (BLOCK + 1) * slots)
        ops.cpu_attn_reshape_and_cache(
            key, value, *halves, mapping, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
        )
        found += cache[BLOCK].reshape(heads, -1).to(torch.int64) << shift
    return found


def is_known(dtype: torch.dtype, size: int, slots: int, isa: str) -> bool:
    numbers = torch.arange(2 * slots * HEADS * size).reshape(2, slots, HEADS, size)
    shape = (BLOCKS, HEADS, slots, 2 * size)
    stride = (HEADS * slots * 2 * size, slots * 2 * size, 2 * size, 1)
    view = TensorView(str(dtype), shape, stride)
    (group,) = detect_groups([view], LayoutHints(), device="cpu")
    known = KVPlaces.transposed(group, size)
    found = seen(isa, numbers, dtype).numpy()
    return all(
        np.array_equal(found[head][np.add.outer(places.slots, places.elements)], numbers[kind, :, head])
        for head in range(HEADS)
        for kind, places in enumerate((known.key, known.value))
    )


for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for size in (32, 64, 80, 128):
        for slots in (16, 32, 128):
            isa = _get_attn_isa(dtype, slots, size)
            print("RESULT", isa, dtype, size, slots, is_known(dtype, size, slots, isa))
