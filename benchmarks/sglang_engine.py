"""`demo.sglang_engine` with attention for the tokens that are computed, and no others.

SGLang's attention on the CPU (`torch_native`) is run for all tokens of a prompt, those with a cached K and V included, and then
throws these results away.  A hit costs nearly as much as computing there, whatever the cache does.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention

from demo import sglang_engine


def extend(
    self: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    *of_encoders: Any,
    scaling: float | None = None,
    enable_gqa: bool = False,
    **unused: Any,
) -> torch.Tensor:
    """Causal.  Tensors are `[tokens, heads, dimension]`, prompts one behind the other."""
    first = 0
    lengths = (req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens)
    for request, length, prefix, new in zip(*(each.tolist() for each in lengths), strict=True):
        slots, rows = req_to_token[request, :length], slice(first, first + new)
        asked, keys, values = (
            each.movedim(0, 1).unsqueeze(0) for each in (query[rows], k_cache[slots], v_cache[slots])
        )
        mask = torch.ones(new, length, dtype=torch.bool).tril(prefix) if prefix else None
        answer = scaled_dot_product_attention(
            asked, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=enable_gqa
        )
        output[rows] = answer.squeeze(0).movedim(1, 0)
        first += new
    return output


if __name__ == "__main__":
    TorchNativeAttnBackend._run_sdpa_forward_extend = extend
    sglang_engine.main()
