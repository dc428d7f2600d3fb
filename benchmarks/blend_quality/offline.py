"""Blend in plain torch, without server and engine: `python -m benchmarks.blend_quality.offline [--check-layer 3]`.

It shows whether the model is fit for the question: that it answers, that reuse as it is costs answers, and where.
The rows are those of the run in vLLM that need no more than K's deviation.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as tf
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from benchmarks.blend_quality.prompts import Prompt, prompts
from benchmarks.blend_quality.train import MODEL

LINK_TOKENS = 16


class Blender:
    """One prompt: K and V of all layers, [2, layers, heads, tokens, head size], and passes over some of its tokens."""

    def __init__(self, model: LlamaForCausalLM, tokens: Sequence[int]) -> None:
        config = model.config
        self.model = model.model
        self.head = model.lm_head
        self.tokens = torch.tensor(tokens)
        self.positions = torch.arange(len(tokens))
        shape = (2, config.num_hidden_layers, config.num_key_value_heads, len(tokens), config.head_dim)
        self.kv = torch.zeros(shape)

    def turned(self, keys: Tensor, positions: Tensor) -> Tensor:
        """K, [heads, tokens, head size], turned by so many positions, which may be negative."""
        cos, sin = self.model.rotary_emb(keys, positions[None])
        turned: Tensor = apply_rotary_pos_emb(keys[None], keys[None], cos, sin)[1][0]
        return turned

    def take(self, stored: Blender, length: int, start: int) -> None:
        """Move the last `length` tokens of another prompt to `start`."""
        old = len(stored.tokens) - length
        moved = stored.kv[..., old:, :].clone()
        for layer in moved[0]:
            layer[:] = self.turned(layer, torch.full((length,), start - old))
        self.kv[..., start : start + length, :] = moved

    def compute(self, rows: Tensor, layers: int | None = None) -> Tensor:
        """Compute these tokens over the KV of all, in the first `layers` layers; return the last one's hidden state."""
        at = self.positions[rows]
        seen = self.positions[None] <= at[:, None]
        hidden = self.model.embed_tokens(self.tokens[rows])
        cos_sin = self.model.rotary_emb(hidden, at[None])
        for index, layer in enumerate(self.model.layers[:layers]):
            normed, attention = layer.input_layernorm(hidden), layer.self_attn
            heads = (len(at), -1, attention.head_dim)
            q, k, v = (
                project(normed).view(heads).transpose(0, 1)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = (each[0] for each in apply_rotary_pos_emb(q[None], k[None], *cos_sin))
            self.kv[0, index][:, rows], self.kv[1, index][:, rows] = k, v
            mixed = tf.scaled_dot_product_attention(q, self.kv[0, index], self.kv[1, index], attn_mask=seen)
            hidden = hidden + attention.o_proj(mixed.transpose(0, 1).reshape(len(at), -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last: Tensor = hidden[-1]
        return last

    def answer(self, chosen: Tensor) -> int:
        """Compute the chosen tokens, and what no document holds: the first token and the question."""
        rows = chosen.clone()
        rows[0] = rows[-2:] = True
        return int(self.head(self.model.norm(self.compute(rows))).argmax())


def rows_of(model: LlamaForCausalLM, prompt: Prompt, check_layer: int, random: Random) -> Iterator[tuple[str, int]]:
    """Yield the name of each way to compute the prompt, and its answer."""
    everything = torch.ones(len(prompt.tokens), dtype=torch.bool)
    nothing = ~everything
    fresh = Blender(model, prompt.tokens)
    yield "full", fresh.answer(everything)
    reused = Blender(model, prompt.tokens)
    for stored, (start, end) in zip(prompt.stored, prompt.segments, strict=True):
        alone = Blender(model, stored)
        alone.compute(torch.ones(len(stored), dtype=torch.bool))
        reused.take(alone, end - start, start)
    naive = reused.kv.clone()

    def answer(chosen: Tensor, checked: int = 0) -> int:
        reused.kv = naive.clone()
        reused.kv[:, :checked] = fresh.kv[:, :checked]
        return reused.answer(chosen)

    yield "none", answer(nothing)
    yield "check layers only", answer(nothing, check_layer + 1)
    deviation = (fresh.kv[0, check_layer] - naive[0, check_layer]).square().sum((0, 2))
    deviation[0] = deviation[-2:] = -1.0
    total = len(prompt.tokens) - 3
    for ratio in (0.05, 0.10, 0.15, 0.20):
        budget = int(ratio * total)
        chosen = nothing.clone()
        chosen[deviation.topk(budget).indices] = True
        yield f"cacheblend {ratio:.0%}", answer(chosen, check_layer + 1)
        chosen = nothing.clone()
        chosen[random.sample(range(1, 1 + total), budget)] = True
        yield f"random {ratio:.0%}", answer(chosen)
    chosen = nothing.clone()
    for start, _ in prompt.segments:
        chosen[start : start + LINK_TOKENS] = True
    yield "lego_link", answer(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blend_quality.offline", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--check-layer", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = LlamaForCausalLM.from_pretrained(options.model).eval()
    for way in ("alone", "among others"):
        right: dict[tuple[str, bool], list[bool]] = defaultdict(list)
        for number, prompt in enumerate(prompts(way, options.prompts)):
            for name, token in rows_of(model, prompt, options.check_layer, Random(number)):
                right[name, prompt.question.across].append(token == prompt.question.value)
        print(f"documents stored {way}: right within, across documents")
        for name in dict.fromkeys(name for name, _ in right):
            shares = (sum(hits) / len(hits) for hits in (right[name, False], right[name, True]))
            print(f"{name:18}" + "".join(f"{share:8.1%}" for share in shares))


if __name__ == "__main__":
    main()
