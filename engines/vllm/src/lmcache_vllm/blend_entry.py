"""What tokens enter a layer with, kept from a pass that ended there: a later pass over some of them begins there, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from torch import nn

BYTES_MAX: Final = 1 << 29
"""Of one blend, of which two or three are under way at once. A model of 8 billion parameters has 16 KiB for each token: 32,768
tokens."""


class Entry(NamedTuple):
    """For the tokens of one batch, in its order."""

    layer: str
    """The attention layer whose decoder layer they enter."""
    tensors: tuple[torch.Tensor, ...]
    """`[token][...]`: what the decoder layer before it returned."""


class Entries:
    """Of the tokens of one request, on one layer."""

    def __init__(self, layer: str, end: int) -> None:
        self._layer = layer
        self._rows = torch.full((end,), -1, dtype=torch.int64)
        self._parts: list[tuple[torch.Tensor, ...]] = []
        self._count = self._bytes = 0

    def add(self, positions: torch.Tensor, entry: Entry | None) -> None:
        """After a pass. None: they are not known."""
        if entry is None or self._bytes > BYTES_MAX:
            return
        self._bytes += sum(tensor.nbytes for tensor in entry.tensors)
        self._rows[positions] = torch.arange(self._count, self._count + len(positions))
        self._parts.append(entry.tensors)
        self._count += len(positions)

    def of(self, positions: torch.Tensor) -> Entry | None:
        """None where one of them is not known; when all were added."""
        rows = self._rows[positions]
        if not self._count or bool((rows < 0).any()):
            return None
        return Entry(self._layer, tuple(tensor[rows.to(tensor.device)] for tensor in self._joined))

    @cached_property
    def _joined(self) -> tuple[torch.Tensor, ...]:
        parts, self._parts = self._parts, []
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


def layers_before(model: nn.Module, path: str) -> Sequence[nn.Module]:
    """The decoder layers before the one that has the module with this path; none where that is not in a list of layers."""
    names = path.split(".")
    for depth in range(len(names)):
        parent = model.get_submodule(".".join(names[:depth]))
        if isinstance(parent, nn.ModuleList):
            return list(parent)[: int(names[depth])]
    return ()


@contextmanager
def watched(layers: Sequence[nn.Module], layer: str, tokens: int) -> Iterator[Callable[[], Entry | None]]:
    """What tokens enter the layer behind these with, once a pass was there. None where that has another form than we know."""
    found: list[Entry | None] = []

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        fits = all(isinstance(each, torch.Tensor) and each.shape[:1] == (tokens,) for each in tensors)
        # The next layer changes them where they are.
        found.append(Entry(layer, tuple(each.clone() for each in tensors)) if fits else None)

    hook = layers[-1].register_forward_hook(note) if layers else None
    try:
        yield lambda: found[-1] if found else None
    finally:
        if hook is not None:
            hook.remove()


@contextmanager
def entered(layers: Sequence[nn.Module], entry: Entry) -> Iterator[None]:
    """In a pass over these tokens, nothing is computed before their entry. `layers` are those before it."""
    output = entry.tensors if len(entry.tensors) > 1 else entry.tensors[0]
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = lambda *_args, **_named: output
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del layer.forward
            else:
                layer.forward = own
