"""A simulation of the package `infinistore`: its names, with values in a dictionary of this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

TYPE_RDMA, TYPE_TCP = "RDMA", "TCP"


class InfiniStoreKeyNotFound(Exception):  # noqa: N818 - the package's own name
    pass


class ClientConfig(SimpleNamespace):
    pass


class Server:
    """All that one has at an address."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.open = 0


SERVERS: dict[tuple[str, int], Server] = {}


class InfinityConnection:
    """Blocks nowhere; after `close` it raises, as after a lost connection."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.server: Server | None = None
        self.registered: list[tuple[int, int]] = []

    def connect(self) -> None:
        server = SERVERS.get((self.config.host_addr, self.config.service_port))
        if server is None:
            raise Exception("Failed to initialize remote connection")
        with server.lock:
            server.open += 1
        self.server = server

    def close(self) -> None:
        if self.server is not None:
            with self.server.lock:
                self.server.open -= 1
            self.server = None

    def register_mr(self, address: int, size: int) -> int:
        self.registered.append((address, size))
        return 0

    def check_exist(self, key: str) -> bool:
        return key in self._values()

    def delete_keys(self, keys: Sequence[str]) -> int:
        return sum(self._values().pop(key, None) is not None for key in keys)

    def tcp_write_cache(self, key: str, address: int, size: int) -> None:
        assert self.config.connection_type == TYPE_TCP
        self._values()[key] = ctypes.string_at(address, size)

    def tcp_read_cache(self, key: str) -> bytes:
        assert self.config.connection_type == TYPE_TCP
        return self._value(key)

    async def rdma_write_cache_async(self, blocks: Sequence[tuple[str, int]], size: int, address: int) -> None:
        self._check_registered(address, size)
        for key, offset in blocks:
            self._values()[key] = ctypes.string_at(address + offset, size)

    async def rdma_read_cache_async(self, blocks: Sequence[tuple[str, int]], size: int, address: int) -> None:
        self._check_registered(address, size)
        for key, offset in blocks:
            data = self._value(key)[:size]
            ctypes.memmove(address + offset, data, len(data))

    def _check_registered(self, address: int, size: int) -> None:
        assert self.config.connection_type == TYPE_RDMA
        if not any(start <= address and address + size <= start + length for start, length in self.registered):
            raise Exception("the memory is not registered")

    def _value(self, key: str) -> bytes:
        try:
            return self._values()[key]
        except KeyError:
            raise InfiniStoreKeyNotFound(key) from None

    def _values(self) -> dict[str, bytes]:
        if self.server is None:
            raise Exception("not connected")
        return self.server.values
