"""A small Llama-like model that is trained on the spot, so that keys and values have the shape that attention gives them.

Bytes are its tokens, and the sources of Python's own library its text.  It does not judge answers: it shows how far a
quantized cache moves attention and the next token, at the lengths that it is asked for.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as tf
from torch import Tensor, nn

VOCABULARY: Final = 256
TRAINED_TOKENS: Final = 256
BATCH: Final = 4
PREFILL_TOKENS: Final = 1024
ROPE_BASE: Final = 500_000.0
TEXT_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64

    @property
    def width(self) -> int:
        return self.heads * self.head_size

    @property
    def hidden(self) -> int:
        """Of keys, and of values."""
        return self.kv_heads * self.head_size


class LayerCache(NamedTuple):
    """Keys, after their rotation, and values: `[kv heads][tokens][head size]`, float32."""

    keys: Tensor
    values: Tensor


class Steps(NamedTuple):
    """What a run over some tokens gave."""

    logits: Tensor
    attended: list[Tensor]
    """Of each layer: what its attention put out, `[tokens][width]`."""
    cache: list[LayerCache]


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, hidden = shape.width, shape.hidden
        self.before = nn.RMSNorm(width)
        self.between = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, width + 2 * hidden, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def project(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[batch][heads][tokens][head size]`, the first two rotated."""
        shape = self.shape
        parts = self.qkv(self.before(x)).split([shape.width, shape.hidden, shape.hidden], -1)
        q, k, v = (part.unflatten(-1, (-1, shape.head_size)).transpose(1, 2) for part in parts)
        return rotated(q, turns), rotated(k, turns), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended)
        gate, value = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(tf.silu(gate) * value)


class SmallModel(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of `[batch][tokens]`, for training."""
        x, turns = self.embed(tokens), self._turns(0, tokens.shape[1])
        for block in self.blocks:
            q, k, v = block.project(x, turns)
            attended = tf.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = block.finish(x, attended.transpose(1, 2).flatten(2))
        return self.head(self.last(x))

    def steps(self, tokens: Tensor, past: Sequence[LayerCache] | None = None) -> Steps:
        """Run `tokens` behind `past`, which is left as it is."""
        with torch.inference_mode():
            return self._steps(tokens, past)

    def _steps(self, tokens: Tensor, past: Sequence[LayerCache] | None) -> Steps:
        begin = past[0].keys.shape[1] if past else 0
        count = len(tokens)
        seen = torch.arange(begin + count)[None] <= torch.arange(begin, begin + count)[:, None]
        x, turns = self.embed(tokens)[None], self._turns(begin, count)
        attended, cache = [], []
        for number, block in enumerate(self.blocks):
            q, k, v = block.project(x, turns)
            if past:
                k, v = (torch.cat((old[None], new), 2) for old, new in zip(past[number], (k, v), strict=True))
            each = tf.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
            flat = each.transpose(1, 2).flatten(2)
            attended.append(flat[0])
            cache.append(LayerCache(k[0], v[0]))
            x = block.finish(x, flat)
        return Steps(self.head(self.last(x))[0], attended, cache)

    def greedy(self, first: int, past: Sequence[LayerCache], count: int) -> Tensor:
        """`first`, and the `count` tokens that the model puts behind it."""
        tokens = [first]
        for _ in range(count):
            done = self.steps(torch.tensor(tokens[-1:]), past)
            past = done.cache
            tokens.append(int(done.logits[-1].argmax()))
        return torch.tensor(tokens)

    def prefill(self, tokens: Tensor) -> list[LayerCache]:
        """The cache of a prompt, as an engine has it: in bfloat16."""
        past: list[LayerCache] | None = None
        for begin in range(0, len(tokens), PREFILL_TOKENS):
            done = self.steps(tokens[begin : begin + PREFILL_TOKENS], past)
            past = [LayerCache(*(part.bfloat16().float() for part in layer)) for layer in done.cache]
        assert past is not None
        return past

    def _turns(self, begin: int, count: int) -> Tensor:
        half = self.shape.head_size // 2
        speeds = ROPE_BASE ** (-torch.arange(half) / half)
        return torch.outer(torch.arange(begin, begin + count), speeds)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    cos, sin = turns.cos(), turns.sin()
    return torch.cat((low * cos - high * sin, low * sin + high * cos), -1)


def text(seed: int) -> Tensor:
    """Sources of the standard library, in an order that the seed gives."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    order = np.random.default_rng(seed).permutation(len(paths))
    data = b"".join(paths[number].read_bytes() for number in order)[:TEXT_MAX_BYTES]
    return torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.int64))


def trained(shape: Shape, tokens: Tensor, seconds: float, seed: int) -> tuple[SmallModel, float]:
    """A model after this number of seconds, and its loss at the end (nats per byte; 5.5 is knowing nothing)."""
    torch.manual_seed(seed)
    model = SmallModel(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    loss = float("nan")
    end = time.monotonic() + seconds
    for batch in _batches(tokens, seed):
        if time.monotonic() > end:
            break
        optimizer.zero_grad()
        wrong = tf.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        wrong.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = float(wrong.detach())
    return model.eval(), loss


def _batches(tokens: Tensor, seed: int) -> Iterator[Tensor]:
    chance = np.random.default_rng(seed)
    while True:
        starts = chance.integers(0, len(tokens) - TRAINED_TOKENS - 1, BATCH)
        yield torch.stack([tokens[start : start + TRAINED_TOKENS + 1] for start in starts])
