"""`demo.sglang_engine` for models whose layers attend to a window of tokens.

SGLang keeps these layers in a pool of their own.  Its attention on the CPU (`torch_native`) writes there by the slots of that
pool, and reads by those of the other one, so that an engine answers wrong, or ends, when the two differ.  The backends of GPUs
translate, as is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from demo import sglang_engine


def translated(attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def wrapper(
        self: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *given: Any,
        **named: Any,
    ) -> torch.Tensor:
        if named.get("sliding_window_size") is not None and self.use_sliding_window_kv_pool:
            slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
        return attend(self, query, output, k_cache, v_cache, slots, *given, **named)

    return wrapper


if __name__ == "__main__":
    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        setattr(TorchNativeAttnBackend, name, translated(getattr(TorchNativeAttnBackend, name)))
    sglang_engine.main()
