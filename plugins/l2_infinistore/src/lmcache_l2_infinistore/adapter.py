"""The `infinistore` adapter."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from lmcache_core import (
    HEADER_BYTES,
    AdapterContext,
    BorrowedBuffer,
    Capability,
    ObjectHeader,
    ObjectKey,
    Outcome,
    ResourceError,
    inspect,
    media_path,
)
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_l2_infinistore.config import InfinistoreSettings
from lmcache_l2_infinistore.doctor import INSTALL, REMEDY, rdma_fault, rdma_text

Value = TypeVar("Value")


class InfinistoreAdapter(AsyncL2Adapter):
    """Each object on its way has a connection of the package, whose calls block a thread.  Over RDMA the package moves bytes
    straight between L1 and the server; over TCP it hands out a copy."""

    capabilities = Capability.DELETE | Capability.SHARED

    def __init__(self, settings: InfinistoreSettings, context: AdapterContext, package: Any) -> None:
        """`package`: the module `infinistore`."""
        self._settings: Final = settings
        self._package: Final = package
        self._idle: Final[list[Any]] = []
        super().__init__(context, settings.num_connections)

    async def started(self) -> None:
        settings = self._settings
        try:
            self._idle.append(await self.in_thread(self._connected))
        except Exception as error:  # noqa: BLE001 - the package raises nothing narrower
            raise ResourceError(
                f"{self.context.name}: no InfiniStore answers at {settings.host}:{settings.port} over "
                f"{settings.connection_type} ({error}; {rdma_text()}); start it, or correct host and port"
            ) from None
        self.context.logger.info(
            "%s adapter=%s connection_type=%s", rdma_text(), self.context.name, settings.connection_type
        )

    async def stopped(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        name = self._name(key)
        async with self._connection() as connection:
            if await self.in_thread(connection.check_exist, name):
                return Outcome.DONE
            if self._settings.connection_type == "rdma":
                await _to_its_end(connection.rdma_write_cache_async([(name, 0)], buffer.length, buffer.address))
            else:
                await self.in_thread(connection.tcp_write_cache, name, buffer.address, buffer.length)
        return Outcome.DONE

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """Over RDMA the package does not say how long the object is: its header does."""
        name = self._name(key)
        async with self._connection() as connection:
            try:
                if self._settings.connection_type == "rdma":
                    await _to_its_end(connection.rdma_read_cache_async([(name, 0)], buffer.length, buffer.address))
                    found = inspect(buffer.view[:HEADER_BYTES])
                    is_other = isinstance(found, ObjectHeader) and HEADER_BYTES + found.stored_bytes != buffer.length
                    return Outcome.DAMAGED if is_other else Outcome.DONE
                return await self.in_thread(_read, connection, name, buffer)
            except self._package.InfiniStoreKeyNotFound:
                return Outcome.MISSING

    async def contains(self, key: ObjectKey) -> bool:
        async with self._connection() as connection:
            return bool(await self.in_thread(connection.check_exist, self._name(key)))

    async def delete(self, key: ObjectKey) -> Outcome:
        async with self._connection() as connection:
            count: int = await self.in_thread(connection.delete_keys, [self._name(key)])
        return Outcome.DONE if count else Outcome.MISSING

    # How.

    def _name(self, key: ObjectKey) -> str:
        return self._settings.key_prefix + media_path(key)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """One of one's own.  What the package raises closes it, and is a ConnectionError; so does a cancellation."""
        connections = [self._idle.pop()] if self._idle else []
        try:
            if not connections:  # where that is cancelled, the thread makes one all the same
                await self.in_thread(lambda: connections.append(self._connected()))
            yield connections[0]
        except BaseException as error:
            for connection in connections:
                connection.close()
            if isinstance(error, Exception):  # the package raises nothing narrower
                raise ConnectionError(str(error)) from None
            raise
        self._idle.extend(connections)

    def _connected(self) -> Any:
        """In a thread.  Raises Exception."""
        settings, package = self._settings, self._package
        is_rdma = settings.connection_type == "rdma"
        config = package.ClientConfig(
            host_addr=socket.gethostbyname(settings.host),  # the package takes no names
            service_port=settings.port,
            connection_type=package.TYPE_RDMA if is_rdma else package.TYPE_TCP,
            dev_name=settings.dev_name,
            ib_port=settings.ib_port,
            link_type=settings.link_type,
            log_level="warning",
        )
        connection = package.InfinityConnection(config)
        connection.connect()
        try:
            for region in self.context.regions if is_rdma else ():
                connection.register_mr(region.address, region.length)
        except BaseException:
            connection.close()
            raise
        return connection


def _read(connection: Any, name: str, buffer: BorrowedBuffer) -> Outcome:
    found = memoryview(connection.tcp_read_cache(name)).cast("B")
    if len(found) != buffer.length:
        return Outcome.DAMAGED
    buffer.view[:] = found
    return Outcome.DONE


async def _to_its_end(moving: Awaitable[Value]) -> Value:
    """A cancellation passes when no byte is moved any more."""
    task = asyncio.ensure_future(moving)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # which does not cancel what it waits for
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        task.exception()
        raise cancellation
    return task.result()


def open_infinistore(settings: InfinistoreSettings, context: AdapterContext) -> InfinistoreAdapter:
    """Raises ResourceError where the package, the RDMA device or the server is not there."""
    try:
        import infinistore  # its import takes numpy's time
    except ImportError as error:
        raise ResourceError(
            f"{context.name}: the package infinistore cannot be imported ({error}); {INSTALL}"
        ) from None
    if settings.connection_type == "rdma" and (fault := rdma_fault(settings)):
        raise ResourceError(f"{context.name}: {fault}; {REMEDY}")
    return InfinistoreAdapter(settings, context, infinistore)
