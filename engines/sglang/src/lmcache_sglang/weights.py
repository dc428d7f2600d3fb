"""Weights that change while an engine runs.  Pages are named by those with which it began, and hold for no others."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Final

from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from lmcache_client import ConfigError

logger = logging.getLogger(__name__)

UPDATES: Final = frozenset(
    {
        "begin_weight_update",
        "load_weights_from_distributed",
        "update_weights_from_disk",
        "update_weights_from_ipc",
        "update_weights_from_tensor",
    }
)
"""What writes weights, of SGLang's `WeightUpdater`."""
OTHERS: Final = frozenset(
    {
        "destroy_weights_update_group",
        "end_weight_update",
        "init_weights_update_group",
        "receive_weights_from_distributed",
    }
)


def interface() -> frozenset[str]:
    """What SGLang's `WeightUpdater` can do."""
    return frozenset(
        name for name, each in vars(WeightUpdater).items() if callable(each) and "weight" in name and name[0] != "_"
    )


class Weights:
    """Those of this process, in which SGLang has one model.  Any thread."""

    _changes: ClassVar[int] = 0
    _is_watched: ClassVar[bool] = False

    def __init__(self) -> None:
        """Changes are seen from now on: SGLang calls what plugins register, before an update begins, on all ranks.  Raises
        ConfigError where it would not."""
        if not Weights._is_watched:
            for name in UPDATES:
                target = f"{WeightUpdater.__module__}.{WeightUpdater.__qualname__}.{name}"
                HookRegistry.register(target, self._changed, HookType.BEFORE)
            HookRegistry.apply_hooks()  # it logs what fails, and raises nothing
            if missed := [name for name in sorted(UPDATES) if not hasattr(getattr(WeightUpdater, name), "__wrapped__")]:
                raise ConfigError(
                    f"SGLang's plugin hooks do not reach {', '.join(missed)}: pages of old weights would be found after an "
                    "update; its log says why"
                )
            Weights._is_watched = True
        self._known = Weights._changes

    @property
    def are_as_at_the_start(self) -> bool:
        return Weights._changes == self._known

    @staticmethod
    def _changed(*given: Any, **named: Any) -> None:
        if not Weights._changes:
            logger.warning(
                "the weights of this engine change: nothing is loaded from the server and nothing stored from now on; start "
                "the engine with the new weights to use it again"
            )
        Weights._changes += 1
