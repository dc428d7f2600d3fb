"""The same comparison in plain torch, without server and engine: `python -m benchmarks.blend_quality.offline`.

In the engine's environment.  It shows whether a model is fit for the question, and is a second opinion on the engine's
answers: K and V are moved and computed by other code.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as tf
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from benchmarks.blend_quality.prompts import WAYS, Prompt, prompts
from benchmarks.blend_quality.selectors import NOT_TURNED, Row, installed, rows
from benchmarks.blend_quality.train import MODEL
from lmcache_blend_select import Facts, Need, Segment, budget, select, selector

BLOCK_TOKENS: Final = 32
SELECTORS: Final = ("random", "lego_link", "block_start", "cacheblend")
RATIOS: Final = (0.05, 0.10, 0.15, 0.20)
Outcomes = dict[tuple[str, bool], list[bool]]


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
        """K, [heads, tokens, head size], turned by `positions`, which may be negative."""
        cos, sin = self.model.rotary_emb(keys, positions[None])
        turned: Tensor = apply_rotary_pos_emb(keys[None], keys[None], cos, sin)[1][0]
        return turned

    def take(self, stored: Blender, length: int, start: int, *, turned: bool = True) -> None:
        """Move the last `length` tokens of another prompt to `start`, with K for that place, or as it was."""
        old = len(stored.tokens) - length
        moved = stored.kv[..., old:, :].clone()
        for layer in moved[0] if turned else ():
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


class Reuse:
    """One prompt in all ways: computed afresh, and with its documents' KV as it was stored."""

    def __init__(self, model: LlamaForCausalLM, prompt: Prompt, check_layer: int) -> None:
        self._fresh, self._reused = Blender(model, prompt.tokens), Blender(model, prompt.tokens)
        self._everything = torch.ones(len(prompt.tokens), dtype=torch.bool)
        self._fresh.compute(self._everything)
        self._segments = []
        as_it_was = Blender(model, prompt.tokens)
        for stored, (start, end) in zip(prompt.stored, prompt.segments, strict=True):
            alone = Blender(model, stored)
            alone.compute(torch.ones(len(stored), dtype=torch.bool))
            self._reused.take(alone, end - start, start)
            as_it_was.take(alone, end - start, start, turned=False)
            self._segments.append(Segment(start, end, len(stored) - (end - start)))
        self._stored, self._not_turned = self._reused.kv.clone(), as_it_was.kv
        self._check_layer = check_layer

    def answer(self, row: Row) -> int:
        if not row.selector:
            return self._fresh.answer(self._everything)
        chosen = selector(row.selector)
        probed = Need.DEVIATION in chosen.needs
        facts = Facts(tuple(self._segments), 0, BLOCK_TOKENS)
        allowed = budget(chosen, row.ratio, facts.tokens)
        deviation = self._deviation(facts) if probed else None
        runs = select(chosen, Facts(facts.segments, allowed, BLOCK_TOKENS, deviation))
        todo = ~self._everything
        for start, end in runs:
            todo[start:end] = True
        self._reused.kv = (self._not_turned if row.selector == NOT_TURNED else self._stored).clone()
        if probed:
            layers = self._check_layer + 1
            self._reused.kv[:, :layers] = self._fresh.kv[:, :layers]
        return self._reused.answer(todo)

    def _deviation(self, facts: Facts) -> Tensor:
        fresh, stored = (kv[0, self._check_layer] for kv in (self._fresh.kv, self._stored))
        return (fresh - stored).square().sum((0, 2))[None, facts.positions()].numpy()


def loaded(folder: Path) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def outcomes(model: LlamaForCausalLM, asked: Iterable[Prompt], ways: Sequence[Row], check_layer: int) -> Outcomes:
    """Whether answers were right, by the row's name and whether the question is about one document or across several."""
    right: Outcomes = defaultdict(list)
    with installed(), torch.no_grad():
        for prompt in asked:
            reuse = Reuse(model, prompt, check_layer)
            for row in ways:
                right[row.name, prompt.question.across].append(reuse.answer(row) == prompt.question.value)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blend_quality.offline", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--check-layer", type=int, default=3)
    options = parser.parse_args()
    model = loaded(options.model)
    ways = rows(RATIOS, SELECTORS)
    for way in WAYS:
        right = outcomes(model, prompts(way, options.prompts), ways, options.check_layer)
        print(f"documents stored {way}: right within, across documents")
        for row in ways:
            shares = (sum(hits) / len(hits) for hits in (right[row.name, False], right[row.name, True]))
            print(f"{row.name:20}" + "".join(f"{share:8.1%}" for share in shares))


if __name__ == "__main__":
    main()
