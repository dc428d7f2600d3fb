"""The paged KV cache of one worker: where its pages lie, and what its chunks look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lmcache_client import LayoutPart
from lmcache_kv_identity import Fact
from lmcache_kv_layout import EngineGroup, LayoutError, LayoutHints, PagedGroup, TensorView, detect_groups
from lmcache_vllm.placement import CacheGroup

WithOrder = Callable[[PagedGroup, Sequence[int], Sequence[str]], PagedGroup]
"""Of a group, the addresses of its bases and the names of its layers: the same group with the order of its elements."""


class Storage(Protocol):
    """The memory behind a tensor, as torch gives it."""

    def data_ptr(self) -> int: ...
    def nbytes(self) -> int: ...


class Tensor(Protocol):
    """As much of `torch.Tensor` as is needed to find its bytes; nothing here imports torch."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def stride(self) -> Sequence[int]: ...
    def storage_offset(self) -> int: ...
    def untyped_storage(self) -> Storage: ...


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers of one geometry and one block table."""

    paged: PagedGroup
    bases: tuple[int, ...]
    """Process address of each of `paged.bases`."""
    table: int
    """The KV cache group whose block ids these layers use."""
    layer_names: tuple[str, ...]


class KVCaches:
    """What vLLM registered. Keeps the tensors alive: their addresses are good as long as this is."""

    def __init__(
        self,
        tensors: Mapping[str, Any],
        groups: Sequence[CacheGroup],
        kv_layout: str | None,
        with_order: WithOrder | None = None,
    ) -> None:
        """`kv_layout` is vLLM's name for the order of heads and slots in a page; `with_order` finds the order of elements in
        blocks of host memory. Raises LayoutError for pages that are not understood."""
        self.tensors = dict(tensors)
        self.devices = sorted({_device(tensor) for value in tensors.values() for tensor in _planes(value)})
        if len(self.devices) != 1:
            raise LayoutError(
                f"the KV cache lies on {', '.join(self.devices) or 'no device'}; one device is understood"
            )
        registered = _Registered(self.tensors)
        self.storages = registered.storages
        listed = [
            (table, EngineGroup(table, indexes, 0, group.window_tokens))
            for table, group in enumerate(groups)
            for indexes in registered.alike(group.layer_names)
        ]
        paged_groups = detect_groups(
            registered.views, LayoutHints(kv_layout=kv_layout), [group for _, group in listed], self.device
        )
        self.groups = tuple(
            PageGroup(
                paged,
                tuple(registered.addresses[storage] + offset for storage, offset in paged.bases),
                table,
                tuple(registered.names[index] for index in engine_group.layer_indices),
            )
            for (table, engine_group), paged in zip(listed, paged_groups, strict=True)
        )
        for group in self.groups:
            wanted = groups[group.table].block_tokens
            if group.paged.tokens_per_block != wanted:
                raise LayoutError(
                    f"layer '{group.layer_names[0]}' has pages of {group.paged.tokens_per_block} slots for blocks of "
                    f"{wanted} tokens; compressed pages are not understood"
                )
        if with_order is not None and self.device == "cpu":
            self.groups = tuple(
                replace(group, paged=with_order(group.paged, group.bases, group.layer_names)) for group in self.groups
            )

    @property
    def device(self) -> str:
        """`cpu`, `cuda`, ..."""
        return self.devices[0]

    @property
    def facts(self) -> Mapping[str, Fact]:
        """What only the pages themselves say about the bytes in them; part of the model name. Every worker of an engine
        must find the same."""
        orders = {(group.paged.block_slots, group.paged.order) for group in self.groups}
        return {"blocks": [list(order) for order in sorted(orders)]}

    def parts(self, chunk_tokens: int) -> tuple[LayoutPart, ...]:
        """The regions of a chunk, as they are registered. Raises LayoutError where a chunk is not whole blocks."""
        layouts = [group.paged.object_layout(chunk_tokens) for group in self.groups]
        return tuple(
            LayoutPart(
                layout.kv_axis,
                layout.layers,
                layout.slots,
                layout.hidden,
                layout.dtype,
                layout.block_slots,
                layout.order,
            )
            for layout in layouts
        )


class _Registered:
    """Tensors in the order of registration, and the storages that they lie in."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.names = list(tensors)
        self.addresses: list[int] = []
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}
        self.views: list[TensorView | tuple[TensorView, ...]] = []
        for value in tensors.values():
            views = tuple(self._view(tensor) for tensor in _planes(value))
            self.views.append(views if isinstance(value, tuple | list) else views[0])

    def alike(self, layer_names: Sequence[str]) -> list[tuple[int, ...]]:
        """The layers of a group, apart by geometry. A layer that shares another one's pages is left out."""
        wanted, seen = set(layer_names), set()
        buckets: dict[Any, list[int]] = {}
        for index, name in enumerate(self.names):
            views = self.views[index]
            if name not in wanted or views in seen:
                continue
            seen.add(views)
            planes = views if isinstance(views, tuple) else (views,)
            buckets.setdefault(tuple((view.dtype, view.shape, view.stride) for view in planes), []).append(index)
        missing = wanted.difference(self.names)
        if missing:
            raise LayoutError(f"layer '{min(missing)}' of a KV cache group was not registered")
        return [tuple(indexes) for indexes in buckets.values()]

    def _view(self, tensor: Tensor) -> TensorView:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        number = self._numbers.setdefault(address, len(self.addresses))
        if number == len(self.addresses):
            self.addresses.append(address)
            self.storages.append(storage)
        view = TensorView(
            str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), number
        )
        view.check_inside(storage.nbytes())
        return view


def _planes(value: Any) -> Sequence[Tensor]:
    return value if isinstance(value, tuple | list) else (value,)


def _device(tensor: Tensor) -> str:
    return str(getattr(tensor.device, "type", tensor.device))
