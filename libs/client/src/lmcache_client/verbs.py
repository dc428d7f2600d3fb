"""The operations that core knows, as methods."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from lmcache_client import operations as ops
from lmcache_client.engine_key import EngineKey
from lmcache_client.errors import LMCacheError, NoAnswerError, ProtocolError
from lmcache_client.exchange import ClosedError
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

logger = logging.getLogger(__name__)

HELLO_SECONDS: Final = 1.0
"""How long `hello` waits: a server that knows the question answers it in microseconds."""
_STATUS_POLL_SECONDS = 0.005


def required(value: Any, operation: Operation, endpoint: str) -> Any:
    """The value of an answer that always has one.  Raises ProtocolError."""
    if value is None:
        raise ProtocolError(f"{endpoint} answered '{operation.name}' without a value; does it serve that operation?")
    return value


def says_no_hello(endpoint: str) -> None:
    """Log that `hello` got no answer."""
    logger.info("client got no answer to hello, this may be a server that does not know it endpoint=%s", endpoint)


class Verbs(ABC):
    """Every method raises NoAnswerError when no answer comes in time, and ProtocolError for an answer that is not of the
    operation's type.  Nothing is sent twice: who wants to ask again does so."""

    endpoint: str
    timeout_seconds: float

    @abstractmethod
    def call(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its answer; a plugin's operation, too."""

    def _value(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """As `call`, for operations whose answer always has a value."""
        return required(self.call(operation, *payload, timeout_seconds=timeout_seconds), operation, self.endpoint)

    # Management

    def hello(self, client: str = "", timeout_seconds: float = HELLO_SECONDS) -> ServerHello | None:
        """Which server this is.  None without an answer in that time: some servers do not know the question."""
        try:
            said: ServerHello | None = self.call(ops.HELLO, ClientHello(client), timeout_seconds=timeout_seconds)
        except ClosedError:
            raise
        except NoAnswerError:
            said = None
        if said is None:
            says_no_hello(self.endpoint)
        return said

    def get_chunk_size(self) -> int:
        return int(self._value(ops.GET_CHUNK_SIZE))

    def get_experimental(self) -> list[str]:
        return list(self._value(ops.GET_EXPERIMENTAL))

    def ping(self, instance_id: int | None = None, timeout_seconds: float | None = None) -> bool:
        return bool(self._value(ops.PING, instance_id, timeout_seconds=timeout_seconds))

    def noop(self) -> str:
        return str(self._value(ops.NOOP))

    def clear(self, force: bool = False) -> None:
        self.call(ops.CLEAR, force)

    # The scheduler's side

    def lookup(self, key: EngineKey, tp_size: int = 1) -> None:
        self.call(ops.LOOKUP, key, tp_size)

    def query_prefetch_status(self, request_id: str) -> int | None:
        """Hit chunks, once; None while the lookup is still running."""
        hits: int | None = self.call(ops.QUERY_PREFETCH_STATUS, request_id)
        return hits

    def query_prefetch_lookup_hits(self, request_id: str) -> int | None:
        """Chunks that will be hit, before all of them are there; None while that is not known."""
        hits: int | None = self.call(ops.QUERY_PREFETCH_LOOKUP_HITS, request_id)
        return hits

    def wait_prefetch_status(self, request_id: str, timeout_seconds: float) -> int | None:
        """As `query_prefetch_status`, but the server waits.  None after that time; the answer has the client's own
        time-out on top."""
        seconds = timeout_seconds + self.timeout_seconds
        hits: int | None = self.call(
            ops.WAIT_PREFETCH_STATUS, request_id, float(timeout_seconds), timeout_seconds=seconds
        )
        return hits

    def lookup_hits(self, key: EngineKey, tp_size: int = 1) -> int:
        """Look up and ask until the answer is there, as a scheduler does over several steps."""
        self.lookup(key, tp_size)
        deadline = time.monotonic() + self.timeout_seconds
        while (hits := self.query_prefetch_status(key.request_id)) is None:
            if time.monotonic() > deadline:
                raise LMCacheError(
                    f"the lookup of '{key.request_id}' is still running after {self.timeout_seconds:g} s"
                )
            time.sleep(_STATUS_POLL_SECONDS)
        return hits

    def free_lookup_locks(self, key: EngineKey, tp_size: int = 1) -> None:
        self.call(ops.FREE_LOOKUP_LOCKS, key, tp_size)

    def end_session(self, request_id: str) -> None:
        self.call(ops.END_SESSION, request_id)

    def report_block_allocation(self, process_id: int, model_name: str, records: Sequence[BlockAllocation]) -> None:
        self.call(ops.REPORT_BLOCK_ALLOCATION, process_id, model_name, list(records))

    # The worker's side

    def register_engine_driven(self, registration: EngineDrivenRegistration) -> SharedMemoryOffer:
        offer: SharedMemoryOffer = self._value(ops.REGISTER_ENGINE_DRIVEN, registration)
        return offer

    def register_worker(self, registration: WorkerRegistration) -> SharedMemoryOffer:
        """As `register_engine_driven`, for chunks of several regions.  An empty offer is a refusal.
        `unregister_engine_driven` ends it, too."""
        offer: SharedMemoryOffer = self._value(ops.REGISTER_WORKER, registration)
        return offer

    def unregister_engine_driven(self, instance_id: int) -> None:
        self.call(ops.UNREGISTER_ENGINE_DRIVEN, instance_id)

    def prepare_store(self, key: EngineKey, instance_id: int) -> PrepareStoreReply:
        reply: PrepareStoreReply = self._value(ops.PREPARE_STORE, key, instance_id)
        return reply

    def commit_store(self, key: EngineKey, instance_id: int, data: bytes = b"") -> bool:
        return bool(self._value(ops.COMMIT_STORE, key, instance_id, data))

    def abandon_store(self, key: EngineKey, instance_id: int) -> bool:
        """Give back what was prepared and will not be filled.  False when there was nothing."""
        return bool(self._value(ops.ABANDON_STORE, key, instance_id))

    def prepare_retrieve(self, key: EngineKey, instance_id: int) -> PrepareRetrieveReply:
        reply: PrepareRetrieveReply = self._value(ops.PREPARE_RETRIEVE, key, instance_id)
        return reply

    def commit_retrieve(self, key: EngineKey, instance_id: int) -> bool:
        return bool(self._value(ops.COMMIT_RETRIEVE, key, instance_id))
