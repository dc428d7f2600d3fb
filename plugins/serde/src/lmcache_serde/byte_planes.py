"""Bytes of equal significance side by side: exponents compress, mantissas do not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def split(elements: Bytes, planes: Bytes) -> None:
    """Byte `k` of every element to `planes[k]`.  `elements` are whole ones, of as many bytes as there are planes."""
    size = len(planes)
    if size == 1:
        planes[0] = elements
    elif size == 2:  # two vectorized passes; strided reads take twice as long
        words = elements.view("<u2")
        np.copyto(planes[0], words, casting="unsafe")
        np.copyto(planes[1], words >> 8, casting="unsafe")
    else:
        planes[:] = elements.reshape(-1, size).T


def join(planes: Bytes, elements: Bytes) -> None:
    """What `split` was given."""
    size = len(planes)
    if size == 1:
        elements[:] = planes[0]
    elif size == 2:
        words = planes[1].astype("<u2")
        words <<= 8
        words |= planes[0]
        elements.view("<u2")[:] = words
    else:
        elements.reshape(-1, size)[:] = planes.T
