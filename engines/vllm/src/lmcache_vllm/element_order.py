"""The order in which layers of vLLM keep the elements of a block.

Shapes and strides do not say it. On the CPU, a head of a block is all of its K and then all of its V, with the slots of K
innermost or in tiles, as the kernel wants it that vLLM chose for this machine. So each layer writes a known pattern into
one block, by the method that it stores KV with, and the block is read as a chunk would be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from lmcache_kv_layout import KVPlaces, LayoutError, PageCopier, PagedGroup

logger = logging.getLogger(__name__)

Bits = npt.NDArray[np.bool_]
"""One for each element of a block, in the order of chunks: `[kv][slot][head][element]`."""

Order = npt.NDArray[np.uint32]
"""For each place in a chunk's block, the number of the element that is there; in slot order, its own."""

MARK: Final = 256.0
"""A set bit. Not zero in any type, whatever scale it is divided by before it is quantized."""


def with_order(
    paged: PagedGroup, bases: Sequence[int], names: Sequence[str], layers: Mapping[str, Any], dtype: Any
) -> PagedGroup:
    """The same group, with the order of elements that its layers keep; without it where it cannot be seen, which is logged.
    And with the places of K and V, where each token has its own.

    `names` are those of the group's layers, `layers` vLLM's attention layers by name, `dtype` the type that they compute
    with. The last block of each layer is written and restored: no request may run. Raises LayoutError where layers of the
    group differ.
    """
    try:
        order = _common_order(paged, bases, [layers[name] for name in names], dtype)
    except LayoutError:
        raise
    except Exception as error:  # noqa: BLE001  code of another vLLM, or of a backend that stores in its own way
        logger.info(
            "the order of elements in blocks of layer '%s' cannot be seen (%s: %s); engines with other blocks than of %d "
            "slots will not find its chunks",
            names[0],
            type(error).__name__,
            error,
            paged.slots_per_block,
        )
        return paged
    if np.array_equal(order, np.arange(len(order))):
        return replace(paged, block_slots=0)
    places = _places(paged, order, layers[names[0]])
    return replace(paged, order=blake3(order.astype("<u4").tobytes()).hexdigest(8), places=places)


def _places(paged: PagedGroup, order: Order, layer: Any) -> KVPlaces | None:
    """None, and a line in the log, where K and V of a token cannot be found by it. Only what moves tokens needs them."""
    try:
        if hasattr(layer, "kv_lora_rank") or layer.num_kv_heads != paged.heads:
            raise LayoutError("K and V of a head are not apart in its pages")
        return KVPlaces.measured(paged, order, layer.head_size)
    except LayoutError as error:
        logger.info("tokens of chunks cannot be moved: %s", error)
        return None


def _common_order(paged: PagedGroup, bases: Sequence[int], layers: Sequence[Any], dtype: Any) -> Order:
    if len(layers) != paged.layers:
        raise ValueError(f"{paged.layers} layers in {len(layers)} tensors")
    order: Order | None = None
    for place, layer in enumerate(layers):
        block = _Block(paged, bases, place)
        write = _writer(layer, paged, bases[place], dtype)
        saved = block.read()
        try:
            if order is None:
                order = _order(block, write)
            elif not _keeps(order, block, write):
                raise LayoutError(f"layers 0 and {place} of a group keep the elements of a block in different orders")
        finally:
            block.write(saved)
    assert order is not None, "a group without layers"
    return order


class _Block:
    """The last block of one layer."""

    def __init__(self, paged: PagedGroup, bases: Sequence[int], layer: int) -> None:
        places = [kv * paged.layers + layer for kv in range(paged.kv_axis)]
        self._paged = replace(paged, layers=1, bases=tuple(paged.bases[place] for place in places))
        self._bases = [bases[place] for place in places]
        self._pages = PageCopier()
        self._elements = paged.kv_axis * paged.slots_per_block * paged.token_bytes // paged.item_bytes

    def read(self) -> npt.NDArray[Any]:
        """Its elements, as they would stand in a chunk, taken for integers."""
        found = np.zeros(self._elements, f"u{self._paged.item_bytes}")
        self._pages.gather(self._paged, self._bases, [self._paged.blocks - 1], [found.ctypes.data])
        return found

    def write(self, saved: npt.NDArray[Any]) -> None:
        self._pages.scatter(self._paged, self._bases, [self._paged.blocks - 1], [saved.ctypes.data])

    def bits(self) -> Bits:
        """Which elements are not zero."""
        found: Bits = np.not_equal(self.read(), 0)
        return found


def _order(block: _Block, write: Callable[[Bits], None]) -> Order:
    numbers = np.arange(len(block.bits()), dtype=np.uint32)
    found = np.zeros_like(numbers)
    for bit in range(max(1, int(numbers[-1]).bit_length())):
        mask = np.uint32(1 << bit)
        write(np.not_equal(numbers & mask, 0))
        found += block.bits() * mask
    if found.max() >= len(found) or np.bincount(found, minlength=len(found)).min() != 1:
        raise ValueError("what was written does not come back, each element once")
    return found


def _keeps(order: Order, block: _Block, write: Callable[[Bits], None]) -> bool:
    """Whether one random pattern is where it should be. Other orders show in it: they move thousands of elements."""
    pattern = np.random.default_rng(0).integers(0, 2, len(order)).astype(bool)
    write(pattern)
    return np.array_equal(block.bits(), pattern[order])


def _writer(layer: Any, paged: PagedGroup, base: int, dtype: Any) -> Callable[[Bits], None]:
    """Raises any exception for a layer that stores in another way than those that are known."""
    import torch  # where vLLM is

    cache, slots = layer.kv_cache, paged.slots_per_block
    row = paged.token_bytes // paged.item_bytes
    if cache.data_ptr() != base or cache.numel() != paged.blocks * paged.kv_axis * slots * row:
        raise ValueError("it computes with other memory than was registered")
    mapping = torch.arange((paged.blocks - 1) * slots, paged.blocks * slots)

    def tensor(bits: Bits) -> torch.Tensor:
        return torch.from_numpy(bits * np.float32(MARK)).to(dtype)

    if hasattr(layer, "kv_lora_rank"):  # multi-head latent attention

        def write(bits: Bits) -> None:
            latent, rope = np.split(bits.reshape(slots, row), [layer.kv_lora_rank], axis=1)
            layer.impl.do_kv_cache_update(
                tensor(latent), tensor(rope)[:, None], cache, mapping, layer.kv_cache_dtype, layer._k_scale
            )

    else:

        def write(bits: Bits) -> None:
            rows = bits.reshape(paged.kv_axis, slots, layer.num_kv_heads, -1)
            key, value = rows if len(rows) == 2 else np.split(rows[0], [layer.head_size], axis=-1)
            layer.impl.do_kv_cache_update(layer, tensor(key), tensor(value), cache, mapping)

    return write
