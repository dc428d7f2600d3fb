"""The I/O engine of lmcache-native, as far as a measurement uses it, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from lmcache_client.errors import ResourceError

IO_ABI: Final = 1
"""What is expected of the engine; lmcache-native says the same number if it fits."""
_REMEDY: Final = "pip install lmcache-native --upgrade"

Operation = tuple[int | bytes, ...]


class IoEngine(Protocol):
    """As lmcache-native documents it."""

    @property
    def kind(self) -> str: ...
    def fileno(self) -> int: ...
    def register_memory(self, address: int, length: int) -> bool: ...
    def register_file(self, fd: int) -> bool: ...
    def submit(self, operations: Sequence[Operation]) -> None: ...
    def answers(self) -> list[tuple[int, int, bytes | None]]: ...
    def close(self, seconds: float) -> bool: ...


class IoLibrary:
    """Its numbers of operations, and its engines."""

    def __init__(self, module: Any) -> None:
        self.read: Final[int] = module.READ
        self.write: Final[int] = module.WRITE
        self.copy: Final[int] = module.COPY
        self._engine = module.IoEngine

    def engine(self, kind: str, workers: int, queue_depth: int, bytes_in_flight: int) -> IoEngine:
        """The caller closes it.  Raises ResourceError where this machine does not have that kind."""
        try:
            engine: IoEngine = self._engine(kind, workers, queue_depth, bytes_in_flight)
        except OSError as error:
            raise ResourceError(f"an I/O engine of kind '{kind}' is not available: {error.strerror}") from None
        return engine


def io_library() -> IoLibrary | str:
    """What is installed, or why it cannot be used."""
    try:
        module = import_module("lmcache_native.io")
    except ImportError as error:
        return f"lmcache-native, which measures it, cannot be loaded ({error}); {_REMEDY}"
    abi = getattr(module, "IO_ABI", None)
    if abi != IO_ABI:
        return f"the I/O engine of lmcache-native is of version {abi}, {IO_ABI} is needed; {_REMEDY}"
    return IoLibrary(module)
