"""Keys and values of prompts that were computed before, in chunks of tokens."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from inspect import signature
from types import TracebackType
from typing import Any, Final, Self

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lmcache_client import ObjectLayout
from lmcache_client.engine_key import TokenSequence, encode_tokens
from lmcache_core import (
    HashChain,
    KeySpace,
    LookupRequest,
    PromptFacts,
    Shard,
    SlotReferences,
    StoredSpace,
    open_local,
    pack_kv_rank,
)
from lmcache_transformers.model_facts import check_model, model_name, parameter_state

logger = logging.getLogger(__name__)

DEFAULTS: Final[Mapping[str, Any]] = {"l1_size_gb": 1.0, "chunk_size": 256}
_CONNECTION: Final = b"transformers"
_WORKER: Final = 1
_ROWS: Final = ("past_key_values", "cache_implementation", "assistant_model")
"""Arguments that bring another cache, or change it."""
_WAIT_SECONDS: Final = 60.0
"""A lookup ends by itself sooner."""


class PrefixCache:
    """For one model, in its process.  `load` and `save` are for one thread at a time; `close` gives everything back.

    Of a prompt, whole chunks are kept.  Prompts are a tensor `[prompts, tokens]`, a list of token ids, or a list of such lists
    of one length."""

    def __init__(self, model: Any, config: Mapping[str, Any] | None = None) -> None:
        """`config`: settings of `lmcache_core.open_local`, such as `l1_size_gb`, `l2_adapter` and `plugins`.  Raises ValueError
        for a model whose cache is not supported, and LMCacheError for settings that cannot be."""
        check_model(model)
        settings = {**DEFAULTS, **(config or {})}
        self._model = model
        self._chain = HashChain.named(str(settings.get("hash_algorithm", "blake3")))
        self._chunk_tokens = int(settings["chunk_size"])
        self._cache = open_local(settings)
        self._numbers = itertools.count()
        self._known: tuple[Any, StoredSpace] | None = None

    def generate(self, input_ids: Any, **kwargs: Any) -> Any:
        """What `model.generate` answers, sooner where the prompt begins as an earlier one.  Raises ValueError for padding, for
        ways to generate that change the rows of a cache, and for arguments that change what is computed of a prompt."""
        ids = self._ids(input_ids)
        _check_ways(self._model, kwargs)
        mask = kwargs.pop("attention_mask", None)
        if mask is not None and not bool(torch.as_tensor(mask).all()):
            raise ValueError("attention_mask has zeros: padded prompts are not supported; give prompts of one length")
        past = self.load(ids)
        answer = self._model.generate(ids, past_key_values=past, attention_mask=torch.ones_like(ids), **kwargs)
        self.save(ids, past)
        return answer

    def load(self, input_ids: Any) -> DynamicCache:
        """A cache with as many whole chunks of the prompts as all of them have, and never the last token; it may be empty."""
        ids = self._ids(input_ids)
        past = DynamicCache(config=self._model.config.get_text_config())
        space, names = self._space(), []
        hashes = [self._hashes(row, len(row) - 1) for row in ids.tolist()]
        try:
            found = len(hashes[0])
            for row in hashes:
                names.append(f"load-{next(self._numbers)}")
                found = min(found, self._find(names[-1], space, row))
            if found:
                self._fill(past, space, names, [row[:found] for row in hashes])
        finally:
            for name in names:
                self._cache.storage.end_lookup(_CONNECTION, name)
        return past

    def save(self, input_ids: Any, past: DynamicCache) -> int:
        """Keep the whole chunks of `input_ids` that `past` has.  Returns how many were new.  Raises ValueError where the cache
        has another shape than the model says."""
        ids = self._ids(input_ids)
        tokens = min(ids.shape[1], past.get_seq_length())
        self._check(past, len(ids))
        space = self._space()
        return sum(
            self._save_row(space, row, self._hashes(tokens_, tokens), past) for row, tokens_ in enumerate(ids.tolist())
        )

    def status(self) -> dict[str, Any]:
        """As `/status` of a server."""
        return self._cache.status()

    def close(self, drain_seconds: float = 10.0) -> bool:
        """Write what is on its way to backends, and give everything back.  False when not all of it was written."""
        return self._cache.close(drain_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- inside

    def _ids(self, input_ids: Any) -> torch.Tensor:
        ids = input_ids if isinstance(input_ids, torch.Tensor) else _as_tensor(input_ids)
        ids = ids[None] if ids.ndim == 1 else ids
        if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
            raise ValueError(f"prompts are token ids, [prompts, tokens], not {ids.dtype}{list(ids.shape)}")
        return ids.to(self._model.device)

    def _hashes(self, tokens: list[int], end: int) -> Sequence[bytes]:
        return self._cache.hasher.chunk_hashes(TokenSequence.of(encode_tokens(tokens)), end)

    def _space(self) -> StoredSpace:
        """Computed anew when the model's parameters have changed."""
        check_model(self._model)  # it may have got adapters, or be trained
        state = parameter_state(self._model)
        if self._known is None or self._known[0] != state:
            layout = self._layout()
            space = KeySpace(
                model_name(self._model),
                pack_kv_rank(1, 0),
                0,
                "",
                self._chunk_tokens,
                self._chain,
                layout.fingerprint,
            )
            self._known = state, StoredSpace(space, layout.payload_bytes)
        return self._known[1]

    def _layout(self) -> ObjectLayout:
        layers, heads, size = self._shape()
        return ObjectLayout(2, layers, self._chunk_tokens, heads * size, str(self._model.dtype).removeprefix("torch."))

    def _shape(self) -> tuple[int, int, int]:
        """Layers, heads of K and V, and the size of a head."""
        config = self._model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_hidden_layers, heads, size

    def _find(self, name: str, space: StoredSpace, hashes: Sequence[bytes]) -> int:
        if not hashes:
            return 0
        storage, about = self._cache.storage, space.space
        facts = PromptFacts(about.model_name, "", 1, len(hashes) * self._chunk_tokens, len(hashes))
        storage.lookup(LookupRequest(_CONNECTION, name, (Shard((space,)),), hashes, 1, facts))
        answers: list[int] = []
        is_over = threading.Event()

        def take(found: int) -> bool:
            answers.append(found)
            is_over.set()
            return True

        storage.on_lookup(_CONNECTION, name, take)
        if not is_over.wait(_WAIT_SECONDS):
            logger.warning("a lookup was not answered within %.0f s and counts as a miss name=%s", _WAIT_SECONDS, name)
        return answers[0] if answers else 0

    def _fill(
        self, past: DynamicCache, space: StoredSpace, names: Sequence[str], hashes: Sequence[Sequence[bytes]]
    ) -> None:
        held: list[SlotReferences] = []
        try:
            for name, row in zip(names, hashes, strict=True):
                references = self._cache.storage.acquire(_WORKER, name, space, row, 0)
                if references is None:
                    return  # it has left memory meanwhile
                held.append(references)
            chunks = [torch.cat([self._chunk(slot) for slot in each.slots], dim=2) for each in held]
            whole = torch.stack(chunks, dim=2).to(self._model.device)  # K and V, layers, prompts, tokens, heads, size
            for layer in range(whole.shape[1]):
                keys, values = (whole[kv, layer].transpose(1, 2).contiguous() for kv in (0, 1))
                past.update(keys, values, layer)
        finally:
            for references in held:
                self._cache.storage.release(references)

    def _save_row(self, space: StoredSpace, row: int, hashes: Sequence[bytes], past: DynamicCache) -> int:
        if not hashes:
            return 0
        storage = self._cache.storage
        references, indexes = storage.reserve(_WORKER, space, hashes, may_wait=lambda: True)
        if not references.slots:
            return 0
        try:
            for slot, index in zip(references.slots, indexes, strict=True):
                chunk, tokens = self._chunk(slot), slice(index * self._chunk_tokens, (index + 1) * self._chunk_tokens)
                for number, layer in enumerate(_layers(past)):
                    chunk[0, number].copy_(layer.keys[row, :, tokens].transpose(0, 1))
                    chunk[1, number].copy_(layer.values[row, :, tokens].transpose(0, 1))
        except BaseException:
            storage.discard(references)
            raise
        storage.publish(references, indexes[0], f"save-{next(self._numbers)}")
        return len(indexes)

    def _chunk(self, slot: int) -> torch.Tensor:
        """The memory of a slot: K and V, layers, tokens, heads, size."""
        layers, heads, size = self._shape()
        memory = torch.frombuffer(self._cache.storage.payload(slot), dtype=torch.uint8)
        count = 2 * layers * self._chunk_tokens * heads * size * self._model.dtype.itemsize
        return memory[:count].view(self._model.dtype).view(2, layers, self._chunk_tokens, heads, size)

    def _check(self, past: DynamicCache, prompts: int) -> None:
        layers, heads, size = self._shape()
        wanted = (prompts, heads, past.get_seq_length(), size)
        shapes = {(tuple(each.keys.shape), tuple(each.values.shape)) for each in _layers(past)}
        types = {each.keys.dtype for each in _layers(past)}
        if len(past.layers) != layers or shapes != {(wanted, wanted)} or types != {self._model.dtype}:
            raise ValueError(
                f"the cache has {len(past.layers)} layers of {shapes} and {types}; {layers} layers of {wanted} and "
                f"{self._model.dtype} were expected"
            )


def _layers(past: DynamicCache) -> list[Any]:
    """Those with something in them.  Raises ValueError for a layer that is not one of plain attention."""
    if others := {type(layer).__name__ for layer in past.layers if type(layer) is not DynamicLayer}:
        raise ValueError(f"a cache with layers of {', '.join(sorted(others))} is not supported")
    return [layer for layer in list[Any](past.layers) if layer.is_initialized]


def _as_tensor(input_ids: Any) -> torch.Tensor:
    try:
        return torch.tensor(input_ids)
    except (TypeError, ValueError) as error:
        raise ValueError(f"prompts are token ids, or lists of them of one length: {error}") from None


def _check_ways(model: Any, kwargs: Mapping[str, Any]) -> None:
    known = {*model.generation_config.to_dict(), *signature(model.generate).parameters} - {"inputs", "custom_generate"}
    if others := sorted(kwargs.keys() - known - {"attention_mask", *_ROWS}):
        raise ValueError(
            f"{others[0]} is not supported: it may change K and V, which are kept by tokens alone; leave it out, or call the "
            "model without this cache"
        )
    config = kwargs.get("generation_config") or model.generation_config
    given = {**config.to_dict(), **kwargs}
    for name in _ROWS:
        if given.get(name) is not None:
            raise ValueError(f"{name} is not supported beside a prefix cache; leave it out")
    for name in ("num_beams", "num_return_sequences"):
        if (given.get(name) or 1) > 1:
            raise ValueError(
                f"{name} is {given[name]}: the rows of the cache are not those of the prompts then; leave it out"
            )
    if given.get("use_cache") is False:
        raise ValueError("use_cache is False: without a cache there is nothing to keep")
