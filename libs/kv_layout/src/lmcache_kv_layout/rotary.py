"""Rotary position embeddings: what turns K from one position to another."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.numpy_pages import memory_view
from lmcache_kv_layout.numpy_rows import CONVERSIONS
from lmcache_kv_layout.tensor_view import TensorView

Style = Literal["neox", "gptj"]

MAGNITUDE_SPREAD: Final = 0.02
"""How far the length of a pair may be from that of the others: tables in bfloat16 are off by 0.004."""
ANGLE_SPREAD: Final = 0.05
"""How far, in radians, position 2p may be from twice position p."""
SAMPLES: Final = 1024
"""Positions of which that is asked."""


class Rotary:
    """A model's own table of cosines and sines, as `[position, cos | sin]`.

    The first `rotary_dim` elements of a head are turned in pairs: element i with i + rotary_dim / 2 (`neox`), or neighbours
    (`gptj`).  A magnitude baked into the table (YaRN) is in stored K already; it is divided out, so that turning keeps the
    length of every pair.  Immutable; layers and threads may share one.
    """

    def __init__(self, table: NDArray[Any], style: Style) -> None:
        """Copies the table.  Raises LayoutError for one that does not turn by a fixed angle from each position to the next."""
        if style not in ("neox", "gptj"):
            raise LayoutError(f"the style of a rotary embedding is 'neox' or 'gptj', not {style!r}")
        found = np.array(table, np.float32)
        if found.ndim != 2 or found.shape[0] < 2 or found.shape[1] < 2 or found.shape[1] % 2:
            raise LayoutError(
                f"a rotary table of the shape {found.shape}; [positions, cos | sin] of at least 2 positions and an even "
                "width is understood"
            )
        if not np.isfinite(found).all():
            raise LayoutError("a rotary table has numbers that are not finite")
        self.style: Final[Style] = style
        self.positions: Final = found.shape[0]
        """Rows of the table; K is turned by less than that, either way."""
        self.rotary_dim: Final = found.shape[1]
        self.magnitude: Final = float(found[0, : self.rotary_dim // 2].mean())
        self._table = found
        self._check()

    @classmethod
    def at(cls, base: int, view: TensorView, style: Style) -> Rotary:
        """Of a tensor whose storage begins at this address of the process.  Raises LayoutError."""
        if view.dtype not in CONVERSIONS or len(view.shape) != 2:
            raise LayoutError(f"{view} is not a rotary table: two dimensions of {', '.join(CONVERSIONS)} are")
        item = view.item_bytes
        rows, columns = (step * item for step in view.stride)
        bits = memory_view(base + view.storage_offset * item, view.shape, (rows, columns), item)
        return cls(CONVERSIONS[view.dtype][0](np.ascontiguousarray(bits)), style)

    def turn(self, delta: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosine and sine of each pair's angle over `delta` positions, of either sign.  Raises LayoutError beyond the table."""
        if not abs(delta) < self.positions:
            raise LayoutError(
                f"K cannot be turned by {delta} positions: the model's rotary table has {self.positions} of them"
            )
        turned = self._unit(abs(delta))
        return turned.real.astype(np.float32), (turned.imag * np.sign(delta)).astype(np.float32)

    def _unit(self, rows: Any) -> NDArray[np.complex128]:
        """`rows` of the table as unit complex numbers."""
        cos, sin = np.split(self._table[rows].astype(np.float64), 2, axis=-1)
        pairs: NDArray[np.complex128] = cos + 1j * sin
        return pairs / np.abs(pairs)

    def _check(self) -> None:
        half = self.rotary_dim // 2
        lengths = np.hypot(self._table[:, :half], self._table[:, half:])
        if not self.magnitude > 0 or np.abs(lengths / self.magnitude - 1).max() > MAGNITUDE_SPREAD:
            raise LayoutError(
                f"a rotary table has pairs from {lengths.min():.4g} to {lengths.max():.4g} long, and at position 0 "
                f"cosines of {self.magnitude:.4g}: not a rotation"
            )
        if not self._table[:, half:].any():
            raise LayoutError("a rotary table whose sines are all 0: not a rotation")
        positions = np.unique(np.linspace(0, (self.positions - 1) // 2, SAMPLES, dtype=np.int64))
        apart = np.abs(self._unit(2 * positions) - self._unit(positions) ** 2).max(axis=1)
        if apart.max() > ANGLE_SPREAD:
            raise LayoutError(
                f"a rotary table whose position {2 * positions[apart.argmax()]} is not twice position "
                f"{positions[apart.argmax()]}: K cannot be turned from one position to another by it"
            )
