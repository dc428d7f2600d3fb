"""Which implementation is taken, and what is said when that is not possible."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.kernels.choice import KERNEL_ABI, PURE, choose_kernels


def install(monkeypatch: pytest.MonkeyPatch, abi: int | None) -> None:
    module = ModuleType("lmcache_native")
    for name in ("read_prompt", "SlotTable", "Recency"):
        setattr(module, name, object())
    if abi is not None:
        module.KERNEL_ABI = abi  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmcache_native", module)


def test_what_fits_is_taken_unless_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, KERNEL_ABI)
    assert choose_kernels("auto").native
    assert choose_kernels("on").native
    assert choose_kernels("off") is PURE


def test_without_it_auto_does_without_and_on_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmcache_native", None)
    assert choose_kernels("auto") is PURE
    with pytest.raises(ConfigError, match=r"lmcache-native cannot be loaded .*; pip install lmcache-native"):
        choose_kernels("on")


@pytest.mark.parametrize("abi", [None, KERNEL_ABI + 1])
def test_one_that_does_not_fit_is_not_used(monkeypatch: pytest.MonkeyPatch, abi: int | None) -> None:
    install(monkeypatch, abi)
    assert choose_kernels("auto") is PURE
    with pytest.raises(ConfigError, match=rf"kernel ABI {abi}, this lmcache-core needs {KERNEL_ABI}.*--upgrade"):
        choose_kernels("on")
