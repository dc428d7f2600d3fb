"""What the workers of one engine decide together in blends."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

logger = logging.getLogger(__name__)

PEERS_SECONDS: Final = 60.0
"""How long a rank that failed waits for the others: they fail, too, or end their pass, or wait for it in the model for ever."""


class Ranks(Protocol):
    """The workers that hold shards of the same layers."""

    def agree(self, fine: bool) -> bool:
        """Whether all of them are. Ends the process of one that is not where the others do not come: they wait for it in the
        model, and an engine that ends can be restarted."""

    def add(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Element by element over all of them."""


class OneRank:
    """A worker by itself."""

    def agree(self, fine: bool) -> bool:
        return fine

    def add(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return values


class TensorParallelRanks:
    """The tensor parallel workers, by the group that vLLM has for them on the CPU, which no model uses."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def agree(self, fine: bool) -> bool:
        values = torch.tensor([int(fine)])
        work = torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MIN, self._group, async_op=True)
        if fine:  # it waits as long as passes of the others take
            work.wait()
            return bool(values[0])
        try:
            work.wait(timedelta(seconds=PEERS_SECONDS))
        except RuntimeError as error:
            logger.critical(
                "a pass of a blend failed on rank %d alone, and the other workers wait for it in the model: this worker ends, "
                "and the engine with it; restart it, with 'lmcache.blend' off if that happens again: %s",
                torch.distributed.get_rank(self._group),
                error,
            )
            os._exit(1)  # the others cannot be woken: vLLM ends them when it sees that this process is gone
        return False

    def add(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        added = torch.from_numpy(values).clone()
        torch.distributed.all_reduce(added, torch.distributed.ReduceOp.SUM, self._group)
        found: npt.NDArray[np.float32] = added.numpy()
        return found
