"""A client of the engine protocol for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lmcache_client import operations as ops
from lmcache_client.engine_key import EngineKey
from lmcache_client.errors import LMCacheError, NoAnswerError
from lmcache_client.exchange import ClosedError, Exchange, Outcome, no_answer, not_sent
from lmcache_client.messages import (
    BlockAllocation,
    ClientHello,
    EngineDrivenRegistration,
    PrepareRetrieveReply,
    PrepareStoreReply,
    ServerHello,
    SharedMemoryOffer,
    WorkerRegistration,
)
from lmcache_client.operations import Operation
from lmcache_client.verbs import HELLO_SECONDS, required, says_no_hello

if TYPE_CHECKING:  # a quarter of the time that the whole library takes to import; callers have imported it
    import asyncio


class AsyncEngineClient:
    """One connection to a server, for any number of tasks of one event loop: the one in which it is first used.

    Connects in the background, and again after a loss.  Owns its socket; close it, or use it as an async context manager.
    Every method raises NoAnswerError when no answer comes in time, and ProtocolError for an answer that is not of the
    operation's type.  A task that is cancelled forgets its request, which the server may carry out nevertheless.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = 10.0) -> None:
        """`timeout_seconds` is the default of all calls.  Raises LMCacheError when the endpoint cannot be parsed."""
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._exchange: Exchange[asyncio.Future[Any]] = Exchange(endpoint)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def close(self) -> None:
        """End every request with NoAnswerError, and the connection.  May be called again; in the loop's thread, or after
        the loop's end."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._exchange.descriptor)
            _complete(self._exchange.abandon())
        self._exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def call(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its answer; a plugin's operation, too."""
        import asyncio  # not at the top: see there

        loop = self._running_loop(operation, asyncio.get_running_loop())
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        future: asyncio.Future[Any] = loop.create_future()
        request = self._exchange.encode(operation, payload)
        try:
            uid = self._exchange.send(request, seconds, future)
        finally:
            self._read()  # the descriptor may not tell of what has arrived any more
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise no_answer(operation, self.endpoint, seconds) from None
        finally:
            self._exchange.forget(uid)

    async def _value(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        value = await self.call(operation, *payload, timeout_seconds=timeout_seconds)
        return required(value, operation, self.endpoint)

    def _running_loop(self, operation: Operation, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise not_sent(operation, self.endpoint)
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._exchange.descriptor, self._read)
        elif self._loop is not loop:
            raise LMCacheError(f"the connection to {self.endpoint} belongs to another event loop; open one in this one")
        return loop

    def _read(self) -> None:
        _complete(self._exchange.arrived())
        _complete(self._exchange.expired()[0])

    # Management

    async def hello(self, client: str = "", timeout_seconds: float = HELLO_SECONDS) -> ServerHello | None:
        """Which server this is.  None without an answer in that time: some servers do not know the question."""
        try:
            said: ServerHello | None = await self.call(ops.HELLO, ClientHello(client), timeout_seconds=timeout_seconds)
        except ClosedError:
            raise
        except NoAnswerError:
            said = None
        if said is None:
            says_no_hello(self.endpoint)
        return said

    async def get_chunk_size(self) -> int:
        return int(await self._value(ops.GET_CHUNK_SIZE))

    async def get_experimental(self) -> list[str]:
        return list(await self._value(ops.GET_EXPERIMENTAL))

    async def ping(self, instance_id: int | None = None, timeout_seconds: float | None = None) -> bool:
        return bool(await self._value(ops.PING, instance_id, timeout_seconds=timeout_seconds))

    async def noop(self) -> str:
        return str(await self._value(ops.NOOP))

    async def clear(self, force: bool = False) -> None:
        await self.call(ops.CLEAR, force)

    # The scheduler's side

    async def lookup(self, key: EngineKey, tp_size: int = 1) -> None:
        await self.call(ops.LOOKUP, key, tp_size)

    async def query_prefetch_status(self, request_id: str) -> int | None:
        """Hit chunks, once; None while the lookup is still running."""
        hits: int | None = await self.call(ops.QUERY_PREFETCH_STATUS, request_id)
        return hits

    async def query_prefetch_lookup_hits(self, request_id: str) -> int | None:
        """Chunks that will be hit, before all of them are there; None while that is not known."""
        hits: int | None = await self.call(ops.QUERY_PREFETCH_LOOKUP_HITS, request_id)
        return hits

    async def wait_prefetch_status(self, request_id: str, timeout_seconds: float) -> int | None:
        """As `query_prefetch_status`, but the server waits.  None after that time; the answer has the client's own
        time-out on top."""
        seconds = timeout_seconds + self.timeout_seconds
        hits: int | None = await self.call(
            ops.WAIT_PREFETCH_STATUS, request_id, float(timeout_seconds), timeout_seconds=seconds
        )
        return hits

    async def lookup_hits(self, key: EngineKey, tp_size: int = 1) -> int:
        """Look up and wait for the answer, which the server pushes."""
        await self.lookup(key, tp_size)
        hits = await self.wait_prefetch_status(key.request_id, self.timeout_seconds)
        if hits is None:
            raise LMCacheError(f"the lookup of '{key.request_id}' is still running after {self.timeout_seconds:g} s")
        return hits

    async def free_lookup_locks(self, key: EngineKey, tp_size: int = 1) -> None:
        await self.call(ops.FREE_LOOKUP_LOCKS, key, tp_size)

    async def end_session(self, request_id: str) -> None:
        await self.call(ops.END_SESSION, request_id)

    async def report_block_allocation(
        self, process_id: int, model_name: str, records: Sequence[BlockAllocation]
    ) -> None:
        await self.call(ops.REPORT_BLOCK_ALLOCATION, process_id, model_name, list(records))

    # The worker's side

    async def register_engine_driven(self, registration: EngineDrivenRegistration) -> SharedMemoryOffer:
        offer: SharedMemoryOffer = await self._value(ops.REGISTER_ENGINE_DRIVEN, registration)
        return offer

    async def register_worker(self, registration: WorkerRegistration) -> SharedMemoryOffer:
        """As `register_engine_driven`, for chunks of several regions.  An empty offer is a refusal.
        `unregister_engine_driven` ends it, too."""
        offer: SharedMemoryOffer = await self._value(ops.REGISTER_WORKER, registration)
        return offer

    async def unregister_engine_driven(self, instance_id: int) -> None:
        await self.call(ops.UNREGISTER_ENGINE_DRIVEN, instance_id)

    async def prepare_store(self, key: EngineKey, instance_id: int) -> PrepareStoreReply:
        reply: PrepareStoreReply = await self._value(ops.PREPARE_STORE, key, instance_id)
        return reply

    async def commit_store(self, key: EngineKey, instance_id: int, data: bytes = b"") -> bool:
        return bool(await self._value(ops.COMMIT_STORE, key, instance_id, data))

    async def abandon_store(self, key: EngineKey, instance_id: int) -> bool:
        """Give back what was prepared and will not be filled.  False when there was nothing."""
        return bool(await self._value(ops.ABANDON_STORE, key, instance_id))

    async def prepare_retrieve(self, key: EngineKey, instance_id: int) -> PrepareRetrieveReply:
        reply: PrepareRetrieveReply = await self._value(ops.PREPARE_RETRIEVE, key, instance_id)
        return reply

    async def commit_retrieve(self, key: EngineKey, instance_id: int) -> bool:
        return bool(await self._value(ops.COMMIT_RETRIEVE, key, instance_id))


def _complete(outcomes: Sequence[Outcome[asyncio.Future[Any]]]) -> None:
    for future, value, error in outcomes:
        if future.done():  # its task was cancelled
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
