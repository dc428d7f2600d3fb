"""The gate of blending, with models in miniature: what can be moved passes, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engines.vllm.tests.test_element_order import observing
from lmcache_kv_layout import LayoutError
from lmcache_vllm.blend_gate import HALF_LIMIT, LIMIT, Scratch, begins_at, rotaries, what_is_wrong
from lmcache_vllm.blend_pages import BlendPages
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.placement import CacheGroup

torch = pytest.importorskip("torch")
Module: Any = torch.nn.Module

BLOCKS, HEADS, SLOTS, SIZE, LAYERS, POSITIONS = 20, 2, 16, 8, 3, 512
VOCABULARY = 100

Turn = Callable[[Any, Any], Any]
"""K `[token][head][element]` and positions: K as the model computes it there."""


def table(base: float = 10_000.0, dim: int = SIZE, magnitude: float = 1.0) -> Any:
    angles = torch.arange(POSITIONS)[:, None] / base ** (torch.arange(0, dim, 2) / dim)
    return torch.cat([angles.cos(), angles.sin()], dim=1) * magnitude


def turned(cos_sin: Any, *, neox: bool = True) -> Turn:
    def turn(key: Any, positions: Any) -> Any:
        cos, sin = cos_sin[positions][:, None].chunk(2, dim=2)
        dim = cos_sin.shape[1]
        rotated, rest = key[..., :dim], key[..., dim:]
        one, other = rotated.chunk(2, dim=2) if neox else (rotated[..., ::2], rotated[..., 1::2])
        pair = one * cos - other * sin, other * cos + one * sin
        whole = torch.cat(pair, dim=2) if neox else torch.stack(pair, dim=3).flatten(2)
        return torch.cat([whole, rest], dim=2)

    return turn


class Embedding(Module):  # type: ignore[misc]
    def __init__(self, cos_sin: Any, *, neox: bool = True) -> None:
        super().__init__()
        self.is_neox_style = neox
        self.register_buffer("cos_sin_cache", cos_sin)


class Layer(Module):  # type: ignore[misc]
    """Keeps K with its slots innermost, as vLLM does on the CPU."""

    num_kv_heads, head_size = HEADS, SIZE

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.kv_cache = torch.zeros(BLOCKS, HEADS, SLOTS, 2 * SIZE, dtype=dtype)
        self.impl = SimpleNamespace(do_kv_cache_update=self.store)

    def store(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        planes = cache.view(BLOCKS, HEADS, 2, SLOTS * SIZE)
        for row, slot in enumerate(slots.tolist()):
            block, place = divmod(slot, SLOTS)
            planes[block, :, 0].view(HEADS, SIZE, SLOTS)[:, :, place] = key[row].to(cache.dtype)
            planes[block, :, 1].view(HEADS, SLOTS, SIZE)[:, place] = value[row].to(cache.dtype)


class Model(Module):  # type: ignore[misc]
    """`turns`: what each layer does to K; `embeddings`: what it says that it does."""

    def __init__(self, turns: Sequence[Turn], embeddings: Sequence[Any], dtype: Any = torch.float32) -> None:
        super().__init__()
        self.layers = torch.torch.nn.ModuleList()
        for embedding in embeddings:
            attention = Module()
            attention.attn = Layer(dtype)
            if embedding is not None:
                attention.rotary_emb = embedding
            block = Module()
            block.self_attn = attention
            self.layers.append(block)
        self.turns = turns
        self.value_shifts: dict[int, Turn] = {}
        self.entry: Any = None
        """What tokens enter a layer with, for those who ask."""
        self.by_name = {f"layers.{place}": block.self_attn.attn for place, block in enumerate(self.layers)}

    def batch(
        self, runs: Sequence[range], tokens: Sequence[int], blocks: Sequence[int], size: int, shift: int = 0
    ) -> Any:
        places = torch.tensor([place for run in runs for place in run])
        slots = torch.tensor(blocks)[places // size] * size + places % size
        return torch.tensor(tokens)[places], places + shift, slots

    def run(self, batch: Any, entry: Any = None) -> None:
        """`entry`: the layer where the pass begins, and what is wrong behind it."""
        first, wrong = entry or (0, 0.0)
        self._run(batch, range(first, LAYERS), wrong)

    def run_to(self, name: str, batch: Any) -> Any:
        self._run(batch, range(list(self.by_name).index(name) + 1))
        return SimpleNamespace(entry=self.entry)

    def _run(self, batch: Any, layers: range, wrong: float = 0.0) -> None:
        tokens, positions, slots = batch
        for place in layers:
            turn = self.turns[place]
            rows = torch.randn(2, VOCABULARY, HEADS, SIZE, generator=torch.Generator().manual_seed(place))[:, tokens]
            layer = self.by_name[f"layers.{place}"]
            value = self.value_shifts[place](rows[1], positions) if place in self.value_shifts else rows[1]
            layer.store(layer, turn(rows[0], positions) + wrong, value, layer.kv_cache, slots)


def tried(model: Model) -> str:
    """What is wrong, if anything is."""
    found, _ = tried_whole(model)
    return found


def tried_whole(model: Model, layer: str = "layers.1") -> tuple[str, bool]:
    """And whether passes may begin at this layer."""
    names = tuple(model.by_name)
    tensors = {name: layer.kv_cache for name, layer in model.by_name.items()}
    groups = (CacheGroup(names, SLOTS),)
    caches = KVCaches(tensors, groups, "HND", observing(model.by_name, tensors[names[0]].dtype))
    pages = BlendPages(caches, model.by_name, rotaries(model, model.by_name))
    passes: Any = model
    config = SimpleNamespace(max_model_len=400, get_vocab_size=lambda: VOCABULARY)
    scratch = Scratch(pages, caches)
    found = what_is_wrong(passes, pages, scratch, config)
    return found, begins_at(layer, passes, pages, scratch, config)


def alike(turn: Turn, embedding: Any, **options: Any) -> Model:
    return Model([turn] * LAYERS, [embedding] * LAYERS, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dim", [SIZE, SIZE // 2])
@pytest.mark.parametrize("magnitude", [1.0, 1.3])
def test_rotations_pass(dtype: Any, neox: bool, dim: int, magnitude: float) -> None:
    cos_sin = table(dim=dim, magnitude=magnitude)
    assert tried(alike(turned(cos_sin, neox=neox), Embedding(cos_sin, neox=neox), dtype=dtype)) == ""


@pytest.mark.parametrize(
    ("layer", "entry", "begins"),
    [
        ("layers.1", (1, 0.0), True),
        ("layers.2", (2, 0.0), True),
        ("layers.1", (1, 0.1), False),
        ("layers.1", (2, 0.0), True),
        ("layers.1", (LAYERS, 0.0), False),
        ("layers.1", None, False),
        ("layers.0", None, True),
    ],
)
def test_passes_begin_at_a_layer_where_that_makes_no_difference(layer: str, entry: Any, begins: bool) -> None:
    """One that begins too late is seen by the layers that it leaves out."""
    model = alike(turned(table()), Embedding(table()))
    model.entry = entry
    assert tried_whole(model, layer) == ("", begins)


def test_layers_may_have_a_base_of_their_own_or_no_rotation() -> None:
    near, far = table(100.0), table(1_000_000.0)
    turns = [turned(near), turned(far), lambda key, positions: key]
    assert tried(Model(turns, [Embedding(near), Embedding(far), None])) == ""


def test_a_fault_of_one_layer_names_it() -> None:
    right, wrong = Embedding(table()), Embedding(table(10_100.0))
    reason = tried(Model([turned(table())] * 3, [right, wrong, right]))
    assert "K of layer 'layers.1'" in reason
    assert f"{LIMIT[0]:.2g} is the limit" in reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_faults_are_seen(dtype: Any) -> None:
    base, style = Embedding(table(20_000.0)), Embedding(table(), neox=False)
    assert "K of layer 'layers.0'" in tried(alike(turned(table()), base, dtype=dtype))
    assert "K of layer 'layers.0'" in tried(alike(turned(table()), style, dtype=dtype))
    assert "K of layer 'layers.0'" in tried(alike(turned(table()), None, dtype=dtype))


def rounding(amount: float) -> Turn:
    """Another difference for each position and token, as rounding to 16 bits leaves it in layers that are behind others."""

    def shift(value: Any, positions: Any) -> Any:
        return value + amount * value.abs().max() * torch.rand(
            value.shape, generator=torch.Generator().manual_seed(int(positions[0]))
        )

    return shift


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("behind", "wrong", "seen"), [(0.3, False, False), (0.3, True, True), (3.0, False, True)])
def test_rounding_that_adds_up_is_not_a_fault(dtype: Any, behind: float, wrong: bool, seen: bool) -> None:
    cos_sin = table()
    turns = [turned(cos_sin)] * LAYERS
    embeddings = [Embedding(cos_sin), *[Embedding(table(20_000.0) if wrong else cos_sin)] * (LAYERS - 1)]
    model = Model(turns, embeddings, dtype=dtype)
    model.value_shifts = {
        place: rounding(behind * (LIMIT if dtype is torch.float32 else HALF_LIMIT)[1]) for place in range(1, LAYERS)
    }
    assert ("layer 'layers.1'" in tried(model)) == seen


def test_learned_positions_are_seen() -> None:
    learned = 0.003 * torch.randn(POSITIONS, 1, SIZE, generator=torch.Generator().manual_seed(9))
    assert "K of layer 'layers.0'" in tried(alike(lambda key, positions: key + learned[positions], None))


def test_a_length_of_k_or_v_that_depends_on_the_position_is_seen() -> None:
    cos_sin = table()

    def grows(key: Any, positions: Any) -> Any:
        return turned(cos_sin)(key, positions) * (1 + positions[:, None, None] / 1000)

    assert "K of layer 'layers.0'" in tried(alike(grows, Embedding(cos_sin)))
    model = alike(turned(cos_sin), Embedding(cos_sin))
    model.value_shifts = {0: lambda value, positions: value + positions[:, None, None] / 100}
    assert "V of layer 'layers.0'" in tried(model)


def test_a_model_that_computes_no_numbers_is_seen() -> None:
    assert "nan" in tried(alike(lambda key, positions: key * float("nan"), Embedding(table())))


def test_a_model_of_too_few_positions_is_not_tried() -> None:
    model = alike(turned(table()), Embedding(table()[:90]))
    assert tried(model) == "the model has 90 positions, too few to be tried"


def test_two_rotations_in_one_layer_are_refused() -> None:
    model = alike(turned(table()), Embedding(table()))
    model.layers[0].self_attn.other = Embedding(table(500.0))
    with pytest.raises(LayoutError, match=r"layer 'layers\.0' has 2 rotary embeddings"):
        rotaries(model, model.by_name)


def test_rows_are_read_as_the_layers_wrote_them() -> None:
    model = alike(turned(table()), Embedding(table()))
    names = tuple(model.by_name)
    tensors = {name: layer.kv_cache for name, layer in model.by_name.items()}
    caches = KVCaches(tensors, (CacheGroup(names, SLOTS),), "HND", observing(model.by_name))
    pages = BlendPages(caches, model.by_name, rotaries(model, model.by_name))
    positions = torch.arange(3, 60)
    key, value = torch.randn(2, len(positions), HEADS, SIZE)
    blocks = torch.tensor([7, 3, 9, 2])
    layer = model.by_name["layers.1"]
    layer.store(layer, key, value, layer.kv_cache, blocks[positions // SLOTS] * SLOTS + positions % SLOTS)
    assert torch.equal(pages.keys("layers.1", blocks.tolist(), positions), key)
    assert torch.equal(pages.values("layers.1", blocks.tolist(), positions), value)
    assert pages.layer_names == names
