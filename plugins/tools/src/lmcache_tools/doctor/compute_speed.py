"""How fast this machine multiplies matrices: a stand-in for an engine, for who does not give --flops."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, NamedTuple

_SIZE: Final = 1024
_SIZE_GPU: Final = 8192
_ROUNDS: Final = 4


class ComputeSpeed(NamedTuple):
    """`source` says how it is known."""

    flops: float
    source: str


def measured_speed() -> ComputeSpeed | None:
    """On a GPU if torch sees one, else on the processors; None where neither torch nor numpy works.  Takes a second or
    several, most of it for importing torch."""
    for name, measure in (("torch", _of_torch), ("numpy", _of_numpy)):
        if find_spec(name) is not None:
            with suppress(ImportError, OSError, RuntimeError):  # installed, but not for this machine
                return measure()
    return None


def _of_numpy() -> ComputeSpeed:
    import numpy  # only here: core does not need it

    matrix = numpy.ones((_SIZE, _SIZE), numpy.float32)
    return ComputeSpeed(_flops(_SIZE, lambda: matrix @ matrix), "numpy on this machine's processors, float32")


def _of_torch() -> ComputeSpeed:
    import torch  # only here: core does not need it

    if torch.cuda.is_available():
        matrix = torch.ones((_SIZE_GPU, _SIZE_GPU), dtype=torch.bfloat16, device="cuda")

        def multiply() -> object:
            product = matrix @ matrix
            torch.cuda.synchronize()
            return product

        return ComputeSpeed(_flops(_SIZE_GPU, multiply), f"torch on {torch.cuda.get_device_name()}, bfloat16")
    small = torch.ones((_SIZE, _SIZE))
    return ComputeSpeed(_flops(_SIZE, lambda: small @ small), "torch on this machine's processors, float32")


def _flops(size: int, multiply: Callable[[], object]) -> float:
    """Of the fastest of several, after one that warms up."""
    multiply()
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - started)
    return 2.0 * size**3 / min(seconds)
