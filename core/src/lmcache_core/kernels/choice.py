"""Which implementation of the kernels a server runs on."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Literal

import msgspec

from lmcache_client.errors import ConfigError
from lmcache_client.hash_chain import ReadPrompt, read_prompt
from lmcache_core.kernels.interfaces import Recency, SlotTable
from lmcache_core.kernels.recency import PureRecency
from lmcache_core.kernels.slot_table import PureSlotTable

KERNEL_ABI: Final = 1
"""What core expects of the compiled kernels; lmcache-native says the same number if it fits."""
_REMEDY: Final = "pip install lmcache-native"

NativeMode = Literal["auto", "on", "off"]


class Kernels(msgspec.Struct, frozen=True):
    """One implementation of every kernel.  `slot_table` and `recency` make new, empty ones."""

    native: bool
    """Are these the compiled ones?"""
    read_prompt: ReadPrompt
    slot_table: Callable[[], SlotTable]
    recency: Callable[[], Recency]


PURE: Final = Kernels(False, read_prompt, PureSlotTable, PureRecency)


def choose_kernels(mode: NativeMode) -> Kernels:
    """`auto`: the compiled kernels where lmcache-native is installed and fits this core.  `on`: raises ConfigError, which
    says what is missing, instead of doing without them.  `off`: pure Python."""
    if mode == "off":
        return PURE
    try:
        module = import_module("lmcache_native")
    except ImportError as error:
        if mode == "on":
            raise ConfigError(f"native: lmcache-native cannot be loaded ({error}); {_REMEDY}") from None
        return PURE
    return _checked(module, mode)


def _checked(module: Any, mode: NativeMode) -> Kernels:
    abi = getattr(module, "KERNEL_ABI", None)
    if abi == KERNEL_ABI:
        return Kernels(True, module.read_prompt, module.SlotTable, module.Recency)
    if mode == "on":
        raise ConfigError(
            f"native: the installed lmcache-native has kernel ABI {abi}, this lmcache-core needs {KERNEL_ABI}; "
            f"install both in the same version: {_REMEDY} --upgrade"
        )
    return PURE
