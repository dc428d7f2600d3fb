"""What the transfer needs of a GPU's driver, as verbs on plain numbers.

`libcuda.py` binds it to the real one.  Addresses, streams, events and modules are what the driver calls them: integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from lmcache_transfer_torch.device import DeviceError

HANDLE_BYTES: Final = 64
"""Length of a handle by which another process reaches memory or an event."""

LASTING: Final = frozenset(
    {
        "CUDA_ERROR_DEINITIALIZED",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA_ERROR_UNKNOWN",
    }
)
"""Errors after which nothing on this device works any more in this process."""


class DriverError(DeviceError):
    """A call of the driver failed."""

    def __init__(self, call: str, name: str, meaning: str) -> None:
        super().__init__(f"{call} failed: {name} ({meaning})")
        self.call = call
        self.name = name

    @property
    def lasting(self) -> bool:
        return self.name in LASTING


class GpuInfo(NamedTuple):
    ordinal: int
    uuid: str
    """As torch writes it: hexadecimal in groups of 8-4-4-4-12."""
    name: str
    capability: int
    """90 for compute capability 9.0."""


class Span(NamedTuple):
    """A stretch of memory."""

    address: int
    length: int


class GpuDriver(Protocol):
    """One GPU.  Any thread; every call may raise DriverError."""

    @property
    def info(self) -> GpuInfo: ...

    def close(self) -> None:
        """The last call."""

    # --- memory

    def allocate(self, length: int) -> int:
        """Device memory."""

    def free(self, address: int) -> None: ...

    def allocate_host(self, length: int) -> int:
        """Pinned memory of this process."""

    def free_host(self, address: int) -> None: ...

    def pin(self, address: int, length: int) -> None:
        """Pin memory of this process.  Both are multiples of a page.  It must not hold what is pinned already."""

    def unpin(self, address: int) -> None: ...

    def open_memory(self, handle: bytes) -> int:
        """Map an allocation of another process.  A handle must not be opened twice."""

    def close_memory(self, address: int) -> None: ...

    def export_memory(self, address: int) -> bytes: ...

    def allocation(self, address: int) -> Span:
        """The whole allocation that an address lies in."""

    def clear(self, address: int, length: int) -> None:
        """Device memory becomes zero, before the call returns or any later work begins."""

    # --- streams and events

    def create_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None:
        """What was submitted to it still runs."""

    def check(self, stream: int) -> None:
        """Raises what work of the stream, or anything before it on this GPU, has failed with."""

    def synchronize(self) -> None:
        """Blocks until the device is done with all work of this process."""

    def create_event(self, shared: bool) -> int:
        """`shared`: it can be exported."""

    def destroy_event(self, event: int) -> None: ...

    def open_event(self, handle: bytes) -> int: ...

    def export_event(self, event: int) -> bytes: ...

    def record(self, event: int, stream: int) -> None: ...

    def wait_event(self, stream: int, event: int) -> None: ...

    def is_complete(self, event: int) -> bool:
        """Whether what was recorded last has happened.  Raises what that work failed with."""

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """The stream goes on when the 8 bytes there are at least `value`."""

    def write_value(self, stream: int, address: int, value: int) -> None: ...

    def post(self, stream: int, semaphore: int) -> None:
        """Post a POSIX semaphore of this process, by address, when the stream gets there.  Not if its work failed."""

    # --- copies and kernels, in a stream

    def copy_to_device(self, device: int, host: int, length: int, stream: int) -> None: ...

    def copy_to_host(self, host: int, device: int, length: int, stream: int) -> None: ...

    def load(self, image: bytes) -> int:
        """A module, from its compiled image."""

    def unload(self, module: int) -> None: ...

    def function(self, module: int, name: str) -> int: ...

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, arguments: Sequence[tuple[str, int]], stream: int
    ) -> None:
        """Run a kernel.  An argument is a type (`i32` or `i64`) and a number."""


class GpuDrivers(Protocol):
    """All GPUs that this process sees."""

    @property
    def gpus(self) -> Sequence[GpuInfo]: ...

    def open(self, ordinal: int) -> GpuDriver:
        """Raises DriverError."""
