"""`demo.sglang_engine` for a DeepSeek without a processor that has AMX.

With its plain attention on the CPU (`torch_native`) SGLang expands keys and values in a prefill, while that attention reads the
latent ones of the pool, and its rotary embedding is a compiled kernel.  This driver selects latent attention, as in a decode,
and the rotary embedding in torch.  One thread loads the weights: torch's thread pool fails when several threads initialize it.
"""

from __future__ import annotations

from concurrent import futures
from types import SimpleNamespace
from typing import Any

from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.models import deepseek_v2
from sglang.srt.models.deepseek_common import deepseek_weight_loader
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

from demo import sglang_engine


def rope(*given: Any, device: Any = None, **named: Any) -> Any:
    return get_rope(*given, **named)


if __name__ == "__main__":
    deepseek_v2.get_rope_wrapper = rope
    loading = SimpleNamespace(
        ThreadPoolExecutor=lambda: futures.ThreadPoolExecutor(1), as_completed=futures.as_completed
    )
    deepseek_weight_loader.concurrent = SimpleNamespace(futures=loading)
    AttentionBackendRegistry.register("torch_native", lambda attention, batch: AttnForwardMethod.MLA)
    sglang_engine.main()
