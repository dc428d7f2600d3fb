"""Elements of KV as single-precision numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lmcache_core import ITEM_BYTES

Raw = NDArray[Any]
"""Elements as they are stored: uint16 for bfloat16, which numpy does not know."""
Floats = NDArray[np.float32]

LARGEST: Final = 2.0**14
"""A plane with this or more in it is not a working key or value; it is kept as it is."""


@dataclass(frozen=True, slots=True)
class FloatType:
    """A type that is quantized.  A plane whose largest value is neither zero nor from `least` to below `LARGEST`, or that
    has a NaN, is kept as it is: outside, scales and sums of single precision are not exact enough for the bounds."""

    name: str
    raw: np.dtype[Any]
    least: float

    def within(self, largest: float) -> bool:
        """False for NaN, too."""
        return largest == 0 or self.least <= largest < LARGEST

    def read(self, raw: Raw, into: Floats) -> None:
        """Exact."""
        if self.name == "bfloat16":
            bits = into.view(np.uint32)
            np.copyto(bits, raw)
            np.left_shift(bits, 16, out=bits)
        else:
            np.copyto(into, raw)

    def write(self, floats: Floats, into: Raw) -> None:
        """To the nearest, ties to even.  `floats`, which are finite, are overwritten."""
        if self.name == "bfloat16":
            bits = floats.view(np.uint32)
            last = bits >> 16
            last &= 1
            last += 0x7FFF
            bits += last
            bits >>= 16
            np.copyto(into, bits, casting="unsafe")
        else:
            np.copyto(into, floats, casting="same_kind")


FLOATS: Final[Mapping[str, FloatType]] = MappingProxyType(
    {
        "bfloat16": FloatType("bfloat16", np.dtype("<u2"), 2.0**-100),
        "float16": FloatType("float16", np.dtype("<f2"), 2.0**-14),
        "float32": FloatType("float32", np.dtype("<f4"), 2.0**-100),
    }
)
"""By the layout's name."""

if any(kind.raw.itemsize != ITEM_BYTES[name] for name, kind in FLOATS.items()):
    raise AssertionError("a type is read with another width than layouts give it")
