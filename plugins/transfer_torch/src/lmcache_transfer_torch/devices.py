"""The kinds of devices that workers may live on, each opened when the first worker on it registers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lmcache_core import ModuleContext
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.cpu.device import CpuDevice
from lmcache_transfer_torch.device import Device, DeviceError

Opener = Callable[[TransferSettings, ModuleContext], Device]
"""Raises DeviceError where this machine or this installation has no such device."""


def open_cpu(settings: TransferSettings, context: ModuleContext) -> Device:
    return CpuDevice(settings.copy_threads)


def open_cuda(settings: TransferSettings, context: ModuleContext) -> Device:
    from lmcache_transfer_torch.cuda.device import open_cuda_device  # only where a GPU is used

    return open_cuda_device(settings, context)


OPENERS: Final[Mapping[str, Opener]] = MappingProxyType({"cpu": open_cpu, "cuda": open_cuda})


class Devices:
    """Any thread."""

    def __init__(
        self, settings: TransferSettings, context: ModuleContext, openers: Mapping[str, Opener] = OPENERS
    ) -> None:
        self._settings, self._context, self._openers = settings, context, openers
        self._lock = threading.Lock()
        self._open: dict[str, Device] = {}

    def get(self, name: str) -> Device:
        """Raises DeviceError when it is not available; the next worker tries again."""
        with self._lock:
            device = self._open.get(name)
            if device is None:
                try:
                    device = self._open[name] = self._openers[name](self._settings, self._context)
                except ImportError as error:
                    raise DeviceError(f"device {name} needs what is not installed: {error}") from None
            return device

    def status(self) -> dict[str, object]:
        # Without the lock, which is held while a driver starts; the copy is one step of the interpreter.
        return {name: device.status() for name, device in dict(self._open).items()}

    def close(self) -> None:
        with self._lock:
            devices = list(self._open.values())
            self._open.clear()
        for device in devices:
            device.close()
