"""Asks every operation of a module about one prompt after the other, as engines do, and keeps what became of it."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from lmcache_client.codec import OperationCodec
from lmcache_client.errors import LMCacheError
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_devkit.engine_requests import EngineRequest, Scene
from lmcache_devkit.module_bench import BenchCall, ModuleBench
from lmcache_devkit.module_watch import ModuleWatch

REPLY_SECONDS: Final = 5.0
"""How long a module's own thread may take to answer what is there."""
RequestAbout = Callable[[Handler, EngineRequest], Sequence[Any]]


class Deferred(NamedTuple):
    """A call that was not answered at once."""

    operation: str
    number: int
    """Of its request."""
    call: BenchCall


class ModuleRounds:
    """A module that was opened with a bench that is watched.  Requests get new ids, prompts and connections."""

    def __init__(self, open_module: Callable[[ModuleContext], RequestModule], request_about: RequestAbout) -> None:
        self.bench = ModuleBench(l2=True)
        self.watch = ModuleWatch(self.bench.context, self.bench.workers)
        self.module = open_module(self.watch.context)
        self.handlers = list(self.module.handlers())
        self.deferred: list[Deferred] = []
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        """How long each call on the router's thread took, by operation."""
        self._request_about = request_about
        self._codecs = {id(handler): OperationCodec(handler.operation) for handler in self.handlers}
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.module.close()
        self.bench.__exit__(kind, error, trace)

    def run(self, scene: Scene, rounds: int) -> None:
        """`rounds` requests, one after the other.  Each operation is asked once about each; then the engine ends it."""
        for _ in range(rounds):
            request = EngineRequest(scene, self._next)
            self._next += 1
            self.bench.worker = self.bench.register_worker()
            if scene.in_l1 or scene.in_l2:
                self.bench.place(request.tokens, scene.salt, in_l1=scene.in_l1)
            for handler in self.handlers:
                self._ask(handler, request)
            self.bench.storage.end_lookup(request.connection, request.request_id)
        json.dumps(self.module.status())

    def unanswered(self) -> list[Deferred]:
        """Deferred calls without a reply, after their lookups were answered and the module had time."""
        self.bench.settle()
        end = time.monotonic() + REPLY_SECONDS
        while (waiting := [each for each in self.deferred if not each.call.replies]) and time.monotonic() < end:
            time.sleep(0.01)
        return waiting

    def _ask(self, handler: Handler, request: EngineRequest) -> None:
        name = handler.operation.name
        codec = self._codecs[id(handler)]
        frames = [memoryview(frame) for frame in codec.encode_payload(self._request_about(handler, request))]
        on_router = handler.mode in (HandlerMode.INLINE, HandlerMode.ORDERED)
        call = BenchCall(request.connection, may_wait=not on_router)
        self.watch.begin(request, name)
        started = time.perf_counter()
        result = self._answer(handler, call, codec.decode_payload(frames))
        if on_router:
            self.seconds[name].append(time.perf_counter() - started)
        if result is ELSEWHERE:
            call = BenchCall(request.connection, may_wait=True)
            result = self._answer(handler, call, codec.decode_payload(frames))
        if result is DEFERRED and not call.streams:
            self.deferred.append(Deferred(name, request.number, call))
        self.bench.settle()
        for stream in call.streams:
            stream.is_open = False  # its connection is closed

    @staticmethod
    def _answer(handler: Handler, call: BenchCall, arguments: Sequence[Any]) -> Any:
        try:
            return handler.function(call, *arguments)
        except LMCacheError:  # the peer is answered negatively
            return None
