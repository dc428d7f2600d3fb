"""The model's own forward pass over chosen tokens of one request.

Each run of neighbouring tokens is one row of the attention batch. All rows share the request's block table and end at their
own position. vLLM writes K and V of all rows before it attends, so that each row sees what is written for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from lmcache_vllm.blend_entry import Entry, entered, layers_before, watched
from lmcache_vllm.blend_pages import attention_paid


class LayerReachedError(Exception):
    """A pass was to end before the attention of this layer."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the model is called with. K and V of `positions` go into the slots of the request's blocks."""

    positions: torch.Tensor
    """In the order of `inputs`, on the CPU; those that the slots follow from."""
    inputs: Mapping[str, Any]
    attention: Mapping[str, Any]
    slots: Mapping[str, torch.Tensor]


class Reached(NamedTuple):
    """A layer in which a pass ended."""

    queries: torch.Tensor
    """`[token][head x element]`."""
    entry: Entry | None
    """None: what its tokens enter it with is not known."""


class ModelPass:
    """Calls the model of a vLLM model runner. Everything on the model's thread."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._layers = runner.vllm_config.compilation_config.static_forward_context
        self._until: str | None = None
        self._reached = ""
        self._last = ""
        """The last layer of a whole pass; empty: there was none."""
        self._layers_before = cache(self._find_layers_before)
        self.begins_anywhere = True
        """Whether a pass may begin at a layer."""

    def _find_layers_before(self, layer_name: str) -> Sequence[nn.Module]:
        model, wanted = self._runner.get_model(), self._layers[layer_name]
        path = next((path for path, module in model.named_modules() if module is wanted), "")
        return layers_before(model, path)

    def batch(
        self,
        runs: Sequence[range],
        token_ids: Sequence[int],
        block_ids: Sequence[int],
        block_tokens: int,
        shift: int = 0,
    ) -> Batch:
        """Tokens at these positions, of a request with these blocks. The model is given positions that are `shift` higher than
        the places of the tokens in the blocks."""
        # Backends that treat rows of one token apart want them first. Among rows the order has no meaning.
        rows = sorted(runs, key=len)
        positions = torch.cat([torch.arange(run.start, run.stop) for run in rows])
        table = torch.tensor(block_ids, dtype=torch.int32)
        device = self._runner.device
        starts = torch.tensor([0, *(len(run) for run in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        ends = torch.tensor([run.stop for run in rows], dtype=torch.int32)
        slots = (table[positions // block_tokens].to(torch.int64) * block_tokens + positions % block_tokens).to(device)
        shifted = (positions + shift).to(device)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=ends.to(device),
            num_reqs=len(rows),
            num_actual_tokens=len(positions),
            max_query_len=len(rows[-1]),
            max_seq_len=int(ends.max()),
            block_table_tensor=table.to(device).expand(len(rows), -1).contiguous(),
            slot_mapping=slots,
            causal=True,
            positions=shifted,
            is_prefilling=torch.ones(len(rows), dtype=torch.bool),
            seq_lens_cpu_upper_bound=ends,
        )
        attention, slot_mappings = {}, {}
        for groups in self._runner.attn_groups:
            for group in groups:
                built = group.build_metadata(common)
                for name in group.layer_names:
                    attention[name], slot_mappings[name] = built, slots
        inputs = {
            "input_ids": torch.tensor(token_ids, dtype=torch.int32)[positions].to(device),
            "positions": shifted,
            "intermediate_tensors": None,
            "inputs_embeds": None,
        }
        return Batch(positions, inputs, attention, slot_mappings)

    def run(self, batch: Batch, entry: Entry | None = None) -> None:
        """Write K and V of these tokens in all layers. With an `entry` of these tokens the pass begins there."""
        if self._last:  # what comes out of it is asked of no token here
            self._run_to(self._last, batch, entry, ())
            return
        self._run(batch)
        self._last = self._reached

    def _run(self, batch: Batch) -> None:
        tokens = len(batch.positions)
        with (
            self._without_adapters(tokens),
            torch.inference_mode(),
            set_forward_context(
                dict(batch.attention),
                self._runner.vllm_config,
                num_tokens=tokens,
                slot_mapping=dict(batch.slots),
                skip_compiled=True,
            ),
        ):
            self._runner.get_model()(**batch.inputs)

    @contextmanager
    def _without_adapters(self, tokens: int) -> Iterator[None]:
        """Those of vLLM's batch are set again afterwards: its logits are not computed yet."""
        runner = self._runner
        if not runner.lora_config:
            yield
            return
        of_batch = runner.lora_manager._adapter_manager._last_mapping
        runner._set_active_loras((0,) * tokens, (0,) * tokens, set())
        try:
            yield
        finally:
            if of_batch is not None:
                runner.lora_manager.set_active_adapters(set(), of_batch)

    def run_to(self, layer_name: str, batch: Batch, entry: Entry | None = None) -> Reached:
        """Write K and V of these tokens in the layers up to this one, whose attention does not run. `entry` is as for `run`."""
        before = self._layers_before(layer_name) if self.begins_anywhere else ()
        return self._run_to(layer_name, batch, entry, before)

    def _run_to(self, layer_name: str, batch: Batch, entry: Entry | None, before: Sequence[nn.Module]) -> Reached:
        queries: list[torch.Tensor] = []
        hook = self._layers[layer_name].register_forward_pre_hook(
            lambda layer, args, named: queries.append(args[0] if args else named["query"]), with_kwargs=True
        )
        self._until = layer_name
        start = entered(self._layers_before(entry.layer), entry) if entry else nullcontext()
        try:
            with start, watched(before, layer_name, len(batch.positions)) as found:
                try:
                    self._run(batch)
                except LayerReachedError:
                    return Reached(queries[0], found())
        finally:
            self._until = None
            hook.remove()
        raise ValueError(f"the model has no attention layer '{layer_name}' that the connector is called for")

    def attention(
        self, layer_name: str, queries: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """What `attention_paid` says of queries of this layer."""
        layer = self._layers[layer_name]
        rows = queries.view(len(queries), layer.num_heads, layer.head_size)
        return attention_paid(rows, positions, keys, float(layer.impl.scale))

    def before_layer(self, name: str) -> None:
        """K and V of this layer were written; its attention is about to run. Raises LayerReachedError to end a pass there."""
        self._reached = name
        if name == self._until:
            raise LayerReachedError
