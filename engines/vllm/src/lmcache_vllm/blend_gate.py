"""Whether KV of this model can be moved: tried when the engine starts, with the real weights.

The same tokens are computed at position 0 and at others. K of position 0, turned as a load would turn it, and V must be
what the model computes there. This sees learned positions, a wrong rotation, and pages that were misunderstood.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from lmcache_kv_layout import LayoutError, Rotary
from lmcache_vllm.blend_pages import BlendPages
from lmcache_vllm.blend_ranks import OneRank, Ranks, TensorParallelRanks
from lmcache_vllm.blending import Blending
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_copiers import copier_for
from lmcache_vllm.transfer_pages import ChunkPages

if TYPE_CHECKING:
    from lmcache_vllm.blend_pass import ModelPass

logger = logging.getLogger(__name__)

TOKENS: Final = 64
SHIFTS: Final = (1, 37)
"""Positions that they are computed at, beside 0 and one far out."""
LIMIT: Final = (1e-3, 3e-2)
"""Largest difference in float32, relative to the largest value of a layer. The second is what rounding may add up to, in layers
behind the first."""
HALF_LIMIT: Final = (3e-2, 0.3)
"""The same for types of 16 bits."""
NOISE_FACTOR: Final = 2.0
"""Positions have no part in the first layer's V, and V is not turned: in later layers its difference is that of attention at
other positions, rounded: of 1e-3 with angles far out in float32, of 0.1 in bfloat16, in models that pick out single tokens. As
many times that is allowed. A wrong rotation makes differences of about 1."""


def open_blending(
    runner: Any,
    caches: KVCaches | None,
    settings: Settings,
    watch_layers: Callable[[Callable[[str], None]], None],
) -> Blending | str:
    """What blends with this model runner, or why KV of its model cannot be moved. All ranks call it at once, and get as much.
    What `watch_layers` is given wants to be called before the attention of each layer, with its name, from then on.

    Runs the model. The last blocks of the KV cache are overwritten: no request may run.
    """
    from vllm.distributed import get_tp_group  # vLLM itself, which all else here is tried without

    from lmcache_vllm.blend_pass import ModelPass  # as above

    several = runner.parallel_config.tensor_parallel_size > 1
    ranks: Ranks = TensorParallelRanks(get_tp_group().cpu_group) if several else OneRank()
    passes = ModelPass(runner)
    watch_layers(passes.before_layer)
    reason = ""
    try:
        if caches is None:
            raise LayoutError("its pages are not understood")
        layers = runner.vllm_config.compilation_config.static_forward_context
        pages = BlendPages(caches, layers, rotaries(runner.get_model(), layers))
        scratch = Scratch(pages, caches)
        _check_backends(runner)
    except (LayoutError, ValueError) as error:
        reason = str(error)
    if not ranks.agree(not reason):
        return reason or "another worker cannot"
    try:
        reason = what_is_wrong(passes, pages, scratch, runner.model_config)
    except Exception as error:
        logger.exception("the model could not be called for chosen tokens")
        reason = f"the model cannot be called for chosen tokens: {error}"
    if not ranks.agree(not reason):
        return reason or "another worker cannot"
    layer = pages.layer_names[settings.blend_check_layers[-1]]
    passes.begins_anywhere = ranks.agree(begins_at(layer, passes, pages, scratch, runner.model_config))
    scheduler = runner.scheduler_config
    tokens_max = min(settings.blend_step_tokens, scheduler.max_num_batched_tokens)
    return Blending(passes, pages, ranks, settings, tokens_max=tokens_max, rows_max=scheduler.max_num_seqs)


def _check_backends(runner: Any) -> None:
    for groups in runner.attn_groups:
        for group in groups:
            if getattr(group.backend, "forward_includes_kv_cache_update", False):
                raise ValueError(
                    f"the attention backend {group.backend.get_name()} writes K and V while it attends, and tokens of one pass "
                    "would not see each other"
                )


def rotaries(model: nn.Module, layers: Mapping[str, Any]) -> dict[str, Rotary | None]:
    """By the name of each attention layer what turns its K, as the module that the layer is in has it; None where it has
    nothing. Raises LayoutError for what is not one rotation."""
    paths = {id(module): path for path, module in model.named_modules()}
    made: dict[int, Rotary] = {}
    found: dict[str, Rotary | None] = {}
    for name, layer in layers.items():
        if id(layer) not in paths:
            continue
        modules = _rotary_modules(model, paths[id(layer)])
        if len(modules) > 1:
            raise LayoutError(
                f"layer '{name}' has {len(modules)} rotary embeddings; which one K is turned by is not known"
            )
        for module in modules:
            if id(module) not in made:
                table = module.cos_sin_cache.float().cpu().numpy()
                made[id(module)] = Rotary(table, "neox" if module.is_neox_style else "gptj")
        found[name] = made[id(modules[0])] if modules else None
    return found


def _rotary_modules(model: nn.Module, path: str) -> list[Any]:
    """In the smallest module around this one that has any, up to its layer of the model: those above are of all layers."""
    names = path.split(".")
    while names and not names[-1].isdecimal():
        names.pop()
        around = model.get_submodule(".".join(names))
        modules = [module for module in around.modules() if hasattr(module, "cos_sin_cache")]
        if modules:
            return modules
    return []


class Scratch:
    """Blocks at the end of the KV cache: for what is computed at 0, what is computed elsewhere, and what is moved there."""

    def __init__(self, pages: BlendPages, caches: KVCaches) -> None:
        per_place = -(-TOKENS // pages.block_tokens)
        blocks = min(group.paged.blocks for group in caches.groups)
        if blocks <= 3 * per_place:
            raise ValueError(f"the KV cache has {blocks} blocks; {3 * per_place + 1} are needed to try the model")
        first = blocks - 3 * per_place
        self.first, self.computed, self.moved = (
            tuple(range(start, start + per_place)) for start in range(first, blocks, per_place)
        )
        self.chunk = ChunkPages(caches, per_place * pages.block_tokens, copier_for(caches))
        self.buffer = np.zeros(self.chunk.payload_bytes, np.uint8)
        self._tables = [self.first] * (max(group.table for group in caches.groups) + 1)

    def gather(self) -> None:
        """What was computed at 0 becomes a chunk."""
        self.chunk.gather(self._tables, [0], [self.buffer.ctypes.data])


def what_is_wrong(passes: ModelPass, pages: BlendPages, scratch: Scratch, model_config: Any) -> str:
    """What is wrong with moved KV, in words; empty: nothing."""
    tokens, runs = _tokens(model_config), (range(TOKENS),)
    far = min(model_config.max_model_len, pages.positions or model_config.max_model_len) - TOKENS - 1
    if far < max(SHIFTS):
        return f"the model has {far + TOKENS + 1} positions, too few to be tried"
    passes.run(passes.batch(runs, tokens, scratch.first, pages.block_tokens))
    scratch.gather()
    worst, (least, most) = 0.0, LIMIT if pages.item_bytes == 4 else HALF_LIMIT
    for shift in sorted({*SHIFTS, far}):
        passes.run(passes.batch(runs, tokens, scratch.computed, pages.block_tokens, shift))
        pages.write(scratch.buffer.ctypes.data, scratch.chunk.chunk_tokens, range(TOKENS), scratch.moved, 0, shift)
        errors = list(_errors(pages, scratch.computed, scratch.moved))
        noise = {name: error for what, name, error in errors if what == "V"} | {pages.layer_names[0]: 0.0}
        for what, name, error in errors:
            worst = max(worst, error)
            limit = max(least, min(NOISE_FACTOR * noise[name], most))
            if not error <= limit:
                return (
                    f"{what} of layer '{name}', computed at position 0 and moved by {shift}, differs from what the model "
                    f"computes there by {error:.2g} of its largest value; {limit:.2g} is the limit"
                    + ("" if pages.positions else "; no table of a rotary embedding was found in its layers")
                )
    logger.info("KV of this model can be moved: the largest difference is %.2g of a layer's largest value", worst)
    return ""


def begins_at(layer: str, passes: ModelPass, pages: BlendPages, scratch: Scratch, model_config: Any) -> bool:
    """Whether a pass that begins at this layer writes what a whole one does; after `what_is_wrong`. Models may do more than we
    know between their layers."""
    if layer == pages.layer_names[0]:
        return True
    tokens, (limit, _) = _tokens(model_config), LIMIT if pages.item_bytes == 4 else HALF_LIMIT
    batch = passes.batch((range(TOKENS),), tokens, scratch.computed, pages.block_tokens)
    try:
        entry = passes.run_to(layer, batch).entry
        if entry is not None:
            passes.run(batch, entry)
            worst = max(error for _, _, error in _errors(pages, scratch.first, scratch.computed))
            logger.info("passes that begin at layer '%s' differ by %.2g of a layer's largest value", layer, worst)
            if worst <= limit:
                return True
    except Exception:
        logger.exception("a pass that begins at layer '%s' failed", layer)
    logger.warning("passes begin at the first layer: layers of this model are not called one after the other")
    return False


def _tokens(model_config: Any) -> list[int]:
    generator = random.Random(0)
    return [generator.randrange(model_config.get_vocab_size()) for _ in range(TOKENS)]


def _errors(pages: BlendPages, *places: Sequence[int]) -> Iterator[tuple[str, str, float]]:
    """For each layer and K and V: how far the second blocks are from the first, relative to the largest value."""
    positions = torch.arange(TOKENS)
    for name in pages.layer_names:
        for what, rows in (("K", pages.keys), ("V", pages.values)):
            computed, other = (rows(name, blocks, positions) for blocks in places)
            largest = float(computed.abs().max())
            yield what, name, float((other - computed).abs().max()) / (largest or 1.0)
