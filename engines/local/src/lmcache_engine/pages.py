"""Between an engine's paged KV tensors and chunk objects, for whichever of the engines' layouts."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmcache_client import ITEM_BYTES, ChunkLayout, ObjectLayout
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_kv_layout import (
    NO_BLOCK,
    LayoutHints,
    ObjectGroupPlan,
    PageCopier,
    PagedGroup,
    TensorView,
    detect_groups,
    plan_object_groups,
)


class EngineType(StrEnum):
    """Whose tensors are given."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    MOCK = "mock"
    """Of no engine: for tests of what is around a KV cache, without one."""


def CreateGPUConnector(  # noqa: N802 - engines call it so
    config: LMCacheEngineConfig,
    metadata: LMCacheMetadata,
    engine: EngineType = EngineType.VLLM,
    layout_hints: LayoutHints | Mapping[str, Any] | None = None,
) -> PagedConnector:
    """The connector for this engine's tensors.  Raises ValueError for an engine or hints that are not known."""
    hints = layout_hints if isinstance(layout_hints, LayoutHints) else LayoutHints(**(layout_hints or {}))
    kind = MockConnector if EngineType(engine) is EngineType.MOCK else PagedConnector
    return kind(config.chunk_size, metadata, EngineType(engine), hints)


def layout_of(metadata: LMCacheMetadata, chunk_tokens: int) -> ChunkLayout:
    """Of a chunk, as the metadata says: where the tensors' blocks have no order of their own."""
    layers, kv, _, heads, size = metadata.kv_shape
    return ObjectLayout(kv, layers, chunk_tokens, heads * size, metadata.dtype_name)


class _Pages(NamedTuple):
    """What was registered."""

    tensors: Sequence[Any]
    """Keeps their memory alive."""
    groups: tuple[PagedGroup, ...]
    bases: tuple[tuple[int, ...], ...]
    """Process addresses, for each group."""
    plan: ObjectGroupPlan


class PagedConnector:
    """Copies chunks between pages in the host's memory and objects.  `register` comes before anything is copied; one
    thread at a time."""

    suffix = ""
    """Of the model name of what is copied."""

    def __init__(self, chunk_tokens: int, metadata: LMCacheMetadata, engine: EngineType, hints: LayoutHints) -> None:
        self._chunk_tokens, self._metadata, self._engine, self._hints = chunk_tokens, metadata, engine, hints
        self._pages: _Pages | None = None
        self._copier = PageCopier()

    @property
    def layout(self) -> ChunkLayout:
        """Of a chunk: as the tensors have it, or as the metadata says where none are registered yet."""
        if self._pages is not None:
            return self._pages.plan.layout
        return layout_of(self._metadata, self._chunk_tokens)

    @property
    def block_tokens(self) -> int:
        """What a last chunk has a whole number of; a chunk's tokens where it has to be whole, and before there are tensors."""
        groups = self._pages.groups if self._pages else ()
        if not groups or any(group.recurrent for group in groups):
            return self._chunk_tokens
        return math.lcm(*(group.tokens_per_block for group in groups))

    @property
    def layers(self) -> int:
        """Raises ValueError where they cannot be copied one by one."""
        groups = self._registered().groups
        if len(groups) > 1:
            raise ValueError(f"layers of {len(groups)} shapes cannot be copied one by one: use store and retrieve")
        return groups[0].layers

    def register(self, kvcaches: Any) -> None:
        """Take the engine's tensors: a sequence or a mapping of them, layer by layer, each a tensor or the planes of one.

        The same ones again are nothing new.  Raises ValueError for other shapes than the metadata says, for tensors that are
        not in the host's memory, and for layouts that are not understood."""
        tensors = list(kvcaches.values()) if isinstance(kvcaches, Mapping) else list(kvcaches)
        if self._pages is not None and _same(tensors, self._pages.tensors):
            return
        views = _Views()
        layers = [tuple(map(views.of, each)) if isinstance(each, tuple | list) else views.of(each) for each in tensors]
        groups = detect_groups(layers, self._hints, device="cpu", engine=self._engine.value)
        (plan,) = plan_object_groups(groups, self._chunk_tokens, separate=False)
        self._check(groups, plan)
        bases = tuple(tuple(views.addresses[storage] + offset for storage, offset in group.bases) for group in groups)
        self._pages = _Pages(tensors, groups, bases, plan)

    def to_objects(
        self, slots: Any, chunks: Sequence[int], end: int, objects: Sequence[int], layers: range | None = None
    ) -> None:
        """Copy these chunks of a prompt into objects at these addresses.  `slots`: of each token of the prompt, its place in
        the KV cache.  `end`: behind the last token that is copied; the object has zeros there.  `layers`: only these.  Raises
        ValueError, with nothing copied, for slots that are not whole blocks of the cache."""
        for pages, bases, blocks, offset in self._jobs(slots, chunks, end):
            self._copier.gather(pages, bases, blocks, [each + offset for each in objects], layers=layers)

    def from_objects(
        self, slots: Any, chunks: Sequence[int], end: int, objects: Sequence[int], layers: range | None = None
    ) -> None:
        """The other way round.  Tokens with the slot -1, which only the first ones of a prompt may have, go nowhere."""
        places = slot_numbers(slots)
        is_skipping = len(places) > 0 and places[0] == NO_BLOCK
        skipped = int(np.argmax(np.append(places, 0) != NO_BLOCK)) if is_skipping else 0
        for pages, bases, blocks, offset in self._jobs(places, chunks, end, skipped):
            self._copier.scatter(pages, bases, blocks, [each + offset for each in objects], layers=layers)

    def _registered(self) -> _Pages:
        if self._pages is None:
            raise ValueError("no KV cache is registered: give kvcaches= to post_init, store or retrieve")
        return self._pages

    def _jobs(
        self, slots: Any, chunks: Sequence[int], end: int, skipped: int = 0
    ) -> list[tuple[PagedGroup, Sequence[int], list[int], int]]:
        pages, places = self._registered(), slot_numbers(slots)
        return [
            (group, bases, self._blocks(group, places, chunks, end, skipped), region.offset)
            for group, bases, region in zip(pages.groups, pages.bases, pages.plan.regions, strict=True)
        ]

    def _blocks(
        self, group: PagedGroup, slots: NDArray[np.int64], chunks: Sequence[int], end: int, skipped: int
    ) -> list[int]:
        """The blocks that hold these chunks, in order, and none for the tokens that are skipped and what the last one lacks."""
        size = self._chunk_tokens
        end = min(end, (max(chunks, default=-1) + 1) * size)
        if len(slots) < end:
            raise ValueError(f"slot_mapping has {len(slots)} slots for {end} tokens; it has one for each")
        block = group.tokens_per_block
        there = [slots[each * size : min((each + 1) * size, end)] for each in chunks]
        before = sum(min(max(skipped - each * size, 0), size) // block for each in chunks)
        rows = np.concatenate(there).reshape(-1, block)[before:]
        first = rows[:, :1]
        if ((first % block != 0) | (rows != first + np.arange(block))).any():
            raise ValueError(f"slot_mapping: each {block} slots of a chunk are one block of the KV cache, in order")
        found = first[:, 0] // block
        if len(found) and (found.min() < 0 or found.max() >= group.blocks):
            raise ValueError(f"slot_mapping: blocks {found.min()} to {found.max()}; the KV cache has {group.blocks}")
        lacking = len(chunks) * (size // block) - before - len(found)
        return [*[NO_BLOCK] * before, *map(int, found), *[NO_BLOCK] * lacking]

    def _check(self, groups: Sequence[PagedGroup], plan: ObjectGroupPlan) -> None:
        about = self._metadata
        wanted = about.token_elements * self._chunk_tokens * ITEM_BYTES.get(about.dtype_name, 0)
        types = {group.dtype for group in groups}
        if types != {about.dtype_name} or plan.layout.payload_bytes != wanted:
            raise ValueError(
                f"the KV cache is {sum(group.layers for group in groups)} layers of {', '.join(sorted(types))} with "
                f"{plan.layout.payload_bytes} bytes a chunk; the metadata says {about.dtype_name} of kv_shape "
                f"{about.kv_shape}, which is {wanted}"
            )


class MockConnector(PagedConnector):
    """Has no KV cache: objects are zeros, and under names that no other connector has."""

    suffix = "##mock"

    @property
    def block_tokens(self) -> int:
        return 1

    @property
    def layers(self) -> int:
        return self._metadata.kv_shape[0]

    def register(self, kvcaches: Any) -> None:
        """Does nothing: there are no pages."""

    def to_objects(
        self, slots: Any, chunks: Sequence[int], end: int, objects: Sequence[int], layers: range | None = None
    ) -> None:
        for address in objects:
            ctypes.memset(address, 0, self.layout.payload_bytes)

    def from_objects(
        self, slots: Any, chunks: Sequence[int], end: int, objects: Sequence[int], layers: range | None = None
    ) -> None:
        """Does nothing: there are no pages."""


class _Views:
    """Descriptions of tensors, and where their memory is."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self._storages: dict[int, int] = {}

    def of(self, tensor: Any) -> TensorView:
        if tensor.device.type != "cpu":
            raise ValueError(f"a KV tensor is on {tensor.device}; this connector copies in the host's memory only")
        memory = tensor.untyped_storage()
        address = memory.data_ptr()
        number = self._storages.setdefault(address, len(self._storages))
        if number == len(self.addresses):
            self.addresses.append(address)
        view = TensorView(
            str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), number
        )
        view.check_inside(memory.nbytes())
        return view


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def slot_numbers(slots: Any) -> NDArray[np.int64]:
    """In the host's memory.  Raises ValueError for what is none."""
    values = np.asarray(slots.cpu() if hasattr(slots, "cpu") else slots)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"slot_mapping is integers in one dimension, not {values.dtype}{list(values.shape)}")
    return values.astype(np.int64, copy=False)
