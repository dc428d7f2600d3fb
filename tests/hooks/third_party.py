"""A plugin that implements every hook, and writes down what the server does with what it offers."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from lmcache_core import (
    AccessFacts,
    AdapterContext,
    AdapterFacts,
    Bitmap,
    BorrowedBuffer,
    Call,
    ChannelContext,
    ChunksStored,
    CommandContext,
    CompletionQueue,
    EvictionDemand,
    EvictionPolicy,
    Handler,
    HandlerMode,
    HttpAnswer,
    HttpContext,
    HttpRequest,
    HttpRoute,
    InsertFacts,
    L1Memory,
    L1MemoryContext,
    L2Adapter,
    MemoryRegion,
    ModuleContext,
    ObjectKey,
    ObjectLayout,
    Offer,
    Operation,
    Outcome,
    PluginSettings,
    PrefetchPlan,
    PrefetchPolicy,
    RequestModule,
    Route,
    Sample,
    SampleKind,
    Serde,
    ServerInfo,
    Service,
    ServiceContext,
    SettingGroup,
    StoredObject,
    StorePlan,
    StorePolicy,
    Subscriber,
    TransferChannel,
    hookimpl,
)
from lmcache_l2_adapter import BlockingL2Adapter

LMCACHE_PLUGIN_API = 1
CALLS: list[str] = []
"""What was called, in order; tests read and clear it."""
MASKED = bytes(byte ^ 0x5A for byte in range(256))
GREET = Operation("third_party_greet", None, (str,), str, "")


class Shelf(BlockingL2Adapter):
    def __init__(self, context: AdapterContext) -> None:
        self._objects: dict[bytes, bytes] = {}
        super().__init__(context, workers=1)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self._objects[key.object_id] = bytes(buffer.view)
        CALLS.append("adapter.store")
        return Outcome.DONE

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        data = self._objects.get(key.object_id)
        if data is None:
            return Outcome.MISSING
        if len(data) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = data
        CALLS.append("adapter.load")
        return Outcome.DONE

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self._objects


class Mask(Serde):
    """As many bytes as before, for an adapter that keeps objects of one length."""

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return layout.payload_bytes

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        CALLS.append(f"serde.encode {layout}")
        into[:] = bytes(payload).translate(MASKED)
        return len(payload)

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        CALLS.append(f"serde.decode {layout}")
        into[:] = bytes(stored).translate(MASKED)


class AnyVictim(EvictionPolicy):
    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        CALLS.append("eviction.on_insert")
        self._slots.update(dict.fromkeys(slots, facts.slot_bytes))

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        CALLS.append("eviction.on_access")

    def on_remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._slots.pop(slot, None)

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        CALLS.append("eviction.victims")
        return [slot for slot in self._slots if may_evict(slot)]


class ToAll(StorePolicy):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        CALLS.append("store.plan")
        return StorePlan((tuple(range(len(adapters))),) * len(objects))


class FromFirst(PrefetchPolicy):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        CALLS.append("prefetch.plan")
        there = set(found[0]) if found else set()
        return PrefetchPlan(tuple(0 if number in there else None for number in range(found[0].size)))


class Greeter(RequestModule):
    def handlers(self) -> Sequence[Handler]:
        return [Handler(GREET, self.greet, HandlerMode.POOLED)]

    def greet(self, call: Call, name: str) -> str:
        return f"hello {name}"


class Listener(Subscriber):
    def subscriptions(self) -> Mapping[Any, Callable[[Any], None]]:
        return {ChunksStored: lambda event: CALLS.append(f"subscriber.stored {event.chunks}")}


def open_greeting(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    def greet(request: HttpRequest) -> HttpAnswer:
        listener = context.subscriber("listener")
        return HttpAnswer(
            {
                "hello": request.path["name"],
                "chunks": context.server.info.chunk_tokens,
                "listener": type(listener).__name__,
            }
        )

    return [HttpRoute("GET", "/third_party/{name}", greet, "Greets.")]


def open_shelf(settings: None, context: AdapterContext) -> L2Adapter:
    return Shelf(context)


def open_mask(settings: None) -> Serde:
    return Mask()


def open_any_victim(settings: None) -> EvictionPolicy:
    return AnyVictim()


def open_to_all(settings: None) -> StorePolicy:
    return ToAll()


def open_from_first(settings: None) -> PrefetchPolicy:
    return FromFirst()


def open_greeter(settings: None, context: ModuleContext) -> RequestModule:
    return Greeter()


def open_listener(settings: None) -> Subscriber:
    return Listener()


def run_shout(arguments: Sequence[str], context: CommandContext) -> int:
    print(" ".join(arguments).upper(), "/", *(offer.name for offer in context.plugins.offers("eviction_policy")))
    return 7


class Watch(Service):
    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._closed = threading.Event()

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"watch": "third_party://watch"}

    def start(self, server: ServerInfo) -> None:
        assert self._context.transfer_channels == ["ferry"]
        self._context.open_transfer_channel("ferry", "127.0.0.1").close(0.0)
        CALLS.append(f"service.start {server.endpoints['watch']} {self._context.server.info.chunk_tokens}")

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"run": self._run}

    def _run(self) -> None:
        CALLS.append("service.runs")
        self._closed.wait()

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        return [SampleKind("lmcache.watch.looks", "{look}", "Looks.", is_counter=True)]

    def samples(self) -> Sequence[Sample]:
        return [*(kind.of(7) for kind in self.sample_kinds), Sample("lmcache.of.no.kind", 1)]

    def stop(self, seconds: float) -> None:
        CALLS.append(f"service.stop {seconds}")

    def close(self) -> None:
        CALLS.append("service.close")
        self._closed.set()

    def status(self) -> Mapping[str, Any]:
        return {"chunk_size": self._context.configuration()["chunk_size"]}


def open_watch(settings: None, context: ServiceContext) -> Service:
    return Watch(context)


class Cellar(L1Memory):
    def __init__(self, size_bytes: int) -> None:
        self._mapping = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._region = MemoryRegion(address, size_bytes, memoryview(self._mapping))

    @property
    def region(self) -> MemoryRegion:
        return self._region

    @property
    def kind(self) -> str:
        return "cellar"

    def fetch(self, offset: int, length: int) -> None:
        CALLS.append("memory.fetch")

    def close(self) -> None:
        CALLS.append("memory.close")


def open_cellar(settings: None, context: L1MemoryContext) -> L1Memory:
    return Cellar(context.size_bytes)


class Ferry(TransferChannel):
    def __init__(self, settings: None, context: ChannelContext) -> None:
        CALLS.append(f"channel {context.host} {context.region.length > 0}")

    def describe(self) -> bytes:
        return b""

    def connect(self, description: bytes) -> Route:
        raise NotImplementedError

    def completions(self) -> CompletionQueue:
        raise NotImplementedError

    def close(self, deadline_seconds: float) -> None:
        CALLS.append("channel.close")


@hookimpl
def lmcache_transfer_channels() -> Sequence[Offer]:
    return [Offer("ferry", "for tests", f"{__name__}:Ferry")]


@hookimpl
def lmcache_l1_memories() -> Sequence[Offer]:
    return [Offer("cellar", "for tests", f"{__name__}:open_cellar")]


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [Offer("shelf", "for tests", f"{__name__}:open_shelf")]


@hookimpl
def lmcache_serdes() -> Sequence[Offer]:
    return [Offer("mask", "for tests", f"{__name__}:open_mask")]


@hookimpl
def lmcache_eviction_policies() -> Sequence[Offer]:
    return [Offer("any_victim", "for tests", f"{__name__}:open_any_victim")]


@hookimpl
def lmcache_store_policies() -> Sequence[Offer]:
    return [Offer("to_all", "for tests", f"{__name__}:open_to_all")]


@hookimpl
def lmcache_prefetch_policies() -> Sequence[Offer]:
    return [Offer("from_first", "for tests", f"{__name__}:open_from_first")]


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [Offer("greeter", "for tests", f"{__name__}:open_greeter", default=True)]


@hookimpl
def lmcache_subscribers() -> Sequence[Offer]:
    return [Offer("listener", "for tests", f"{__name__}:open_listener", default=True)]


@hookimpl
def lmcache_http_routes() -> Sequence[Offer]:
    return [Offer("greeting", "for tests", f"{__name__}:open_greeting", default=True)]


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [Offer("watch", "for tests", f"{__name__}:open_watch", default=True)]


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    return [Offer("shout", "for tests", f"{__name__}:run_shout")]


class ListenerFlags(PluginSettings):
    listener_word: str = Field("event", description="For tests.")


def apply_flags(values: ListenerFlags, given: frozenset[str]) -> dict[str, Any]:
    CALLS.append(f"applied {values.listener_word} {sorted(given)}")
    return {}


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    return [SettingGroup("Listener", f"{__name__}:ListenerFlags", f"{__name__}:apply_flags")]


@hookimpl
def lmcache_server_started(server: ServerInfo) -> None:
    CALLS.append(f"started {server.chunk_tokens}")


@hookimpl
def lmcache_server_stopping(server: ServerInfo) -> None:
    CALLS.append("stopping")
