"""Write a small random-weight model whose output depends on every token of its context.  Runs in the engine environment.

Usage: python make_model.py CONFIG OUT_DIR [--seed 0]

An engine's own "dummy" weights are so small that attention hardly moves the logits: a wrong KV cache would go unseen.
Here projections keep activations at unit scale, and queries and keys are large enough for attention to pick out single
tokens, so that one changed token or chunk anywhere in the prompt changes what the model says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


class Weights:
    """Draws matrices in a fixed order from one seed: the same seed gives the same model everywhere."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """A matrix that multiplies the scale of a unit-scale vector by `gain`."""
        drawn = torch.randn(rows, columns, generator=self._generator) * (gain / columns**0.5)
        return drawn.to(torch.bfloat16)


Config = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]


def llama_attention(config: Config, weights: Weights, layer: str) -> Tensors:
    """Grouped-query attention: K and V of every key head."""
    hidden = config["hidden_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key_value = config["num_key_value_heads"] * config["head_dim"]
    return {
        layer + "q_proj.weight": weights.matrix(query, hidden, gain=2.0),
        layer + "k_proj.weight": weights.matrix(key_value, hidden, gain=2.0),
        layer + "v_proj.weight": weights.matrix(key_value, hidden, gain=2.0),
        layer + "o_proj.weight": weights.matrix(hidden, query, gain=2.0),
    }


def normed_attention(config: Config, weights: Weights, layer: str) -> Tensors:
    """As of a Llama, with norms of Q and K: attention picks out single tokens by their weights."""
    norms = {
        layer + f"{name}_norm.weight": torch.full((config["head_dim"],), 2.0, dtype=torch.bfloat16) for name in "qk"
    }
    return llama_attention(config, weights, layer) | norms


def latent_attention(config: Config, weights: Weights, layer: str) -> Tensors:
    """Multi-head latent attention (DeepSeek-V2): one latent vector and one rotated key for all heads."""
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotated, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    return {
        layer + "q_proj.weight": weights.matrix(heads * (plain + rotated), hidden, gain=2.0),
        layer + "kv_a_proj_with_mqa.weight": weights.matrix(latent + rotated, hidden, gain=2.0),
        layer + "kv_a_layernorm.weight": torch.ones(latent, dtype=torch.bfloat16),
        layer + "kv_b_proj.weight": weights.matrix(heads * (plain + value), latent, gain=2.0),
        layer + "o_proj.weight": weights.matrix(hidden, heads * value, gain=2.0),
    }


ATTENTION = {
    "LlamaForCausalLM": llama_attention,
    "DeepseekV2ForCausalLM": latent_attention,
    "MellumForCausalLM": normed_attention,
}
"""By architecture; all else of these models is alike."""


def model_tensors(config: Config, seed: int) -> Tensors:
    """All tensors of a model of this shape, by the names that engines look for."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    attention = ATTENTION[config["architectures"][0]]
    weights = Weights(seed)
    tensors = {
        "model.embed_tokens.weight": weights.matrix(vocabulary, hidden, gain=hidden**0.5),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": weights.matrix(vocabulary, hidden, gain=3.0),
    }
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        tensors |= {
            layer + "input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            layer + "post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            **attention(config, weights, layer + "self_attn."),
            layer + "mlp.gate_proj.weight": weights.matrix(inner, hidden),
            layer + "mlp.up_proj.weight": weights.matrix(inner, hidden),
            layer + "mlp.down_proj.weight": weights.matrix(hidden, inner),
        }
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a small random-weight model.")
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tensors = model_tensors(json.loads(args.config.read_text()), args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    unfinished = args.out / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    shutil.copyfile(args.config, args.out / "config.json")
    os.replace(unfinished, args.out / "model.safetensors")
    print(f"{args.out}: {sum(tensor.numel() for tensor in tensors.values()) / 1e6:.1f} million weights")


if __name__ == "__main__":
    main()
