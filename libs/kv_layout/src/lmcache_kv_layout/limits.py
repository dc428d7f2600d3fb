"""Bounds of what a registration may hold, so that a wrong one costs nothing."""

from __future__ import annotations

LAYERS_MAX = 4096
"""Registered tensors, and layers in all of them."""

PLANES_MAX = 8
"""Tensors of one layer."""

GROUPS_MAX = 64
"""Kernel groups of one registration; a chunk object has as many regions at most."""

RANK_MAX = 8
"""Dimensions of a tensor; the formats know six."""

SPAN_MAX = 2**62
"""Bytes that a tensor or a chunk may span; beyond it sums of addresses would not fit 64 bits."""
