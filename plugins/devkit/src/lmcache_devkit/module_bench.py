"""What a request module is opened with, without a server: real storage in plain memory, one registered worker, an L2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from lmcache_client.codec import OperationCodec, encode_result
from lmcache_client.engine_key import TokenSequence, encode_tokens
from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ObjectLayout
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler
from lmcache_core.contracts.request_module import ModuleContext, ObjectGroup, SpaceFields, Worker
from lmcache_core.contracts.storage import StoredSpace
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.kernels.choice import PURE
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.salts import SaltLimits
from lmcache_core.model.keys import HashChain, pack_kv_rank
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.server.chunk_hashing import PromptHasher, open_chain
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.registrations import Registrations
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock

CHUNK_TOKENS: Final = 16
MODEL: Final = "model"
INSTANCE: Final = 1
L1_BYTES: Final = 4 << 20
REFUSED_SALT: Final = "refused"
"""`ModuleContext.admits_salt` says False to it."""
LIMITED_SALT: Final = "limited"
LIMITED_CHUNKS: Final = 2
"""More than these that salt may not have in L1."""


class BenchStream:
    """A `Stream` whose client takes every result: `grant` asks for another one, `is_open` says whether it listens."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.is_open, self.may_send = True, True
        self.results: list[Any] = []

    def send(self, result: Any) -> None:
        encode_result(result)  # raises where a server does
        if not self.may_send:
            raise ValueError("the client has not granted another result")
        self.may_send = False
        if self.is_open:
            self.results.append(result)

    def end(self) -> None:
        self.is_open = False

    def grant(self) -> None:
        self.may_send = True
        self._wake()


class BenchCall:
    """A `Call` of a connection, on the router's thread or on one that may wait."""

    def __init__(self, connection: bytes, may_wait: bool) -> None:
        self._connection, self._may_wait = connection, may_wait
        self.deferred: tuple[float, Any] | None = None
        self.replies: list[Any] = []
        self.streams: list[BenchStream] = []

    @property
    def connection(self) -> bytes:
        return self._connection

    @property
    def may_wait(self) -> bool:
        return self._may_wait

    @property
    def is_congested(self) -> bool:
        return False

    @property
    def others_wait(self) -> bool:
        return False

    def defer(self, seconds: float, fallback: Any) -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a call cannot be deferred by {seconds} seconds")
        encode_result(fallback)  # raises where a server does
        self.deferred = (seconds, fallback)

    def reply(self, result: Any) -> bool:
        self.replies.append(result)
        return len(self.replies) == 1

    def stream(self, wake: Callable[[], None]) -> BenchStream:
        self.streams.append(BenchStream(wake))
        return self.streams[-1]


class ModuleBench:
    """Storage, hasher and registrations as a server has them, with 4 MiB of L1, an L2 adapter if it is wanted, and worker 1
    of model "model" registered.  Time is stopped until `clock.advance`, and L2 until `settle`."""

    def __init__(self, *, l2: bool = False) -> None:
        self.clock, self.events = FakeClock(), EventRecorder()
        self._arena = anonymous_arena(L1_BYTES)
        self.cache = L1Cache(self._arena, 4096)
        self._l2 = CueAdapter()
        self._port = AdapterClient(0, "l2", self._l2, self._l2.capabilities, self.clock, 30.0)
        ports = [self._port] if l2 else []
        self._store = StoreController(
            self.cache, ports, open_store_everywhere(None), StoreLimits(1 << 20), self.clock, self.events
        )
        self._prefetch = PrefetchController(self.cache, ports, open_load_from_first(None), 2, self.clock, self.events)
        self.storage = StorageManager(self.cache, self._store, self._prefetch, 300, 600, self.clock, self.events)
        self.workers = Registrations(self.storage, lambda connection: False, 30, 300, self.clock, self.events)
        self.layout = ObjectLayout(1, 2, CHUNK_TOKENS, 64, "float32")
        limit = LIMITED_CHUNKS * (self.layout.payload_bytes + HEADER_BYTES)
        self.cache.salts.limit(SaltLimits({LIMITED_SALT: limit}), [LIMITED_SALT])
        self.worker = self.register_worker()
        self.prompts = PromptMemory(300, self.clock)
        self.context = ModuleContext(
            storage=self.storage,
            hasher=PromptHasher(open_chain(HashChain.BLAKE3, CHUNK_TOKENS, "seed", PURE), self.prompts),
            workers=self.workers,
            chunk_tokens=CHUNK_TOKENS,
            chain=HashChain.BLAKE3,
            segment=None,
            l1_bytes=L1_BYTES,
            clock=self.clock,
            events=self.events,
            admits_salt=lambda salt: salt != REFUSED_SALT,
            residency=self.cache.feed,
        )

    def register_worker(self) -> Worker:
        """Worker 1, which may have left."""
        return self.workers.register(Worker(INSTANCE, MODEL, 1, (ObjectGroup(self.layout),), 0, True))

    def hashes(self, tokens: Sequence[int], salt: str) -> Sequence[bytes]:
        return self.context.hasher.chunk_hashes(
            TokenSequence.of(encode_tokens(tokens), salt), len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS
        )

    def space(self, salt: str) -> StoredSpace:
        return self.context.space(SpaceFields(MODEL, salt), pack_kv_rank(1, 0), self.layout)

    def place(self, tokens: Sequence[int], salt: str, *, in_l1: bool) -> None:
        """Store the whole chunks of a prompt as worker 1 does: in L1 and L2, or in L2 alone.  As much as its salt may have."""
        references, indexes = self.storage.reserve(self.worker.token, self.space(salt), self.hashes(tokens, salt))
        for slot, index in zip(references.slots, indexes, strict=True):
            self.storage.payload(slot)[:] = bytes([index]) * self.layout.payload_bytes
        if references.slots:
            self.storage.publish(references, 0, "bench")
        self.settle()
        if not in_l1:
            self.storage.clear(force=False)

    def settle(self) -> None:
        """L2 does all that it was asked for, and controllers all that follows from it."""
        self._turn()
        while self._l2.waiting:
            self._l2.finish(self._l2.waiting[0])
            self._turn()

    def _turn(self) -> None:
        self._port.deliver()
        self._store.cycle()
        self._prefetch.cycle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arena.close()

    def call(self, handler: Handler, *payload: Any, connection: bytes = b"c", may_wait: bool = True) -> Any:
        """Send `payload` through the wire format to the handler.  Returns the decoded result, which is the fallback for
        a call that stays deferred.  Raises what the handler raises, and TypeError for an answer that breaks the
        contract."""
        codec = OperationCodec(handler.operation)
        arguments = codec.decode_payload([memoryview(frame) for frame in codec.encode_payload(payload)])
        call = BenchCall(connection, may_wait)
        result = handler.function(call, *arguments)
        if result is ELSEWHERE:
            if may_wait:
                raise TypeError(f"{handler.operation.name} returned ELSEWHERE where it may take its time")
            return self.call(handler, *payload, connection=connection)
        if result is DEFERRED:
            if call.streams:
                result = call.streams[0].results[0] if call.streams[0].results else handler.operation.negative
            elif call.deferred is None:
                raise TypeError(f"{handler.operation.name} returned DEFERRED and called neither `defer` nor `stream`")
            else:
                result = call.replies[0] if call.replies else call.deferred[1]
        try:
            return codec.decode_result(encode_result(result))
        except ProtocolError as error:
            raise TypeError(
                f"{handler.operation.name} answered with something else than its result type: {error}"
            ) from None

    def all_leave(self) -> None:
        """Every worker unregisters, every lookup ends: what is held afterwards is held for ever."""
        for status in self.workers.status():
            self.workers.unregister(int(str(status["instance_id"])), "the test is over")
        self.settle()
        self.pass_time(1e6)

    def pass_time(self, seconds: float) -> None:
        """Deadlines pass, and what is remembered for a while is forgotten."""
        self.clock.advance(seconds)
        self.storage.expire()
        self.prompts.expire()
        self.settle()
        self.events.events.clear()

    def empty(self) -> None:
        """Drop what is in L1 and L2 and is not held."""
        self.storage.clear(force=False)
        self.cache.take_access_log()  # no eviction policy does
        self._l2.objects.clear()
        self._l2.pins.clear()
