"""Looks on while a module uses the server, and notes what breaks the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from lmcache_core.contracts.request_module import ModuleContext, Worker
from lmcache_core.contracts.storage import LookupRequest, Shard, SlotReferences, SparseLookupRequest, StoredSpace
from lmcache_core.server.registrations import Registrations
from lmcache_devkit.engine_requests import EngineRequest

ANSWER_SECONDS: Final = 5.0
"""How long a function that was given to `on_lookup` may take."""


class ModuleWatch:
    """`context` is the server's, with a storage that notes what is asked of it.  Any thread.

    One request is there at a time, so that whatever the module asks for, on whichever thread, is about that one."""

    def __init__(self, context: ModuleContext, workers: Registrations) -> None:
        self.context = replace(context, storage=_WatchedStorage(context.storage, self))
        self.workers = workers
        self.request: EngineRequest | None = None
        self.operation = ""
        self.salts: set[str] = set()
        """Of chunks that were asked for with another salt than that of the request."""
        self.refused: set[str] = set()
        """Verbs that were called for a salt that is not admitted."""
        self.unknown_workers: set[int] = set()
        """Workers without a registration that were to be given slots."""
        self.taken_over: set[str] = set()
        """Operations that began a lookup under the request id of the engine, and ended it."""
        self.stuck: set[str] = set()
        """Operations in which `on_lookup` was called with a lock that its function takes, too."""
        self.held: dict[int, SlotReferences] = {}
        """Those that the module was given and has not given back."""
        self._started: set[tuple[bytes, str]] = set()
        workers.on_leave(self._left)

    def begin(self, request: EngineRequest, operation: str) -> None:
        """From now on, this is what the module is asked."""
        self.request, self.operation = request, operation
        self._started.clear()

    def uses(self, verb: str, spaces: Sequence[StoredSpace]) -> None:
        if self.request is None:
            return
        wanted = self.request.scene.salt
        salts = {space.space.cache_salt for space in spaces}
        self.salts |= salts - {wanted}
        if wanted in salts and not self.context.admits_salt(wanted):
            self.refused.add(verb)

    def gives_slots(self, worker: int) -> None:
        if worker not in {each.token for each in self.workers.registered()}:
            self.unknown_workers.add(worker)

    def looks_up(self, connection: bytes, request_id: str) -> None:
        self._started.add((connection, request_id))

    def ends_lookup(self, connection: bytes, request_id: str) -> None:
        request = self.request
        if request is None or (connection, request_id) != (request.connection, request.request_id):
            return
        if (connection, request_id) in self._started:
            self.taken_over.add(self.operation)

    def _left(self, worker: Worker) -> None:
        """Its references have ended."""
        self.held = {
            number: references for number, references in self.held.items() if references.handle.worker != worker.token
        }


class _WatchedStorage:
    """Implements `contracts.storage.Storage`."""

    def __init__(self, storage: Any, watch: ModuleWatch) -> None:
        self._storage, self._watch = storage, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def lookup(self, request: LookupRequest) -> None:
        self._looks_up(request.connection, request.request_id, request.shards)
        self._storage.lookup(request)

    def lookup_sparse(self, request: SparseLookupRequest) -> None:
        self._looks_up(request.connection, request.request_id, request.shards)
        self._storage.lookup_sparse(request)

    def on_lookup(self, connection: bytes, request_id: str, function: Callable[[int], bool]) -> None:
        self._elsewhere(lambda: self._storage.on_lookup(connection, request_id, function))

    def on_sparse_lookup(self, connection: bytes, request_id: str, function: Callable[[Any], bool]) -> None:
        self._elsewhere(lambda: self._storage.on_sparse_lookup(connection, request_id, function))

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        self._watch.ends_lookup(connection, request_id)
        self._storage.end_lookup(connection, request_id)

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, *rest: Any, **more: Any
    ) -> SlotReferences | None:
        self._watch.uses("acquire", [space])
        self._watch.gives_slots(worker)
        references: SlotReferences | None = self._storage.acquire(worker, request_id, space, *rest, **more)
        return self._given(references)

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        self._watch.uses("has_room", [space])
        return bool(self._storage.has_room(space, chunks))

    def reserve(self, worker: int, space: StoredSpace, *rest: Any, **more: Any) -> tuple[SlotReferences, Sequence[int]]:
        self._watch.uses("reserve", [space])
        self._watch.gives_slots(worker)
        references, indexes = self._storage.reserve(worker, space, *rest, **more)
        self._given(references if references.slots else None)
        return references, indexes

    def release(self, references: SlotReferences) -> None:
        self._watch.held.pop(id(references), None)
        self._storage.release(references)

    def publish(self, references: SlotReferences, *rest: Any, **more: Any) -> bool:
        self._watch.held.pop(id(references), None)
        return bool(self._storage.publish(references, *rest, **more))

    def discard(self, references: SlotReferences) -> None:
        self._watch.held.pop(id(references), None)
        self._storage.discard(references)

    def _given(self, references: SlotReferences | None) -> SlotReferences | None:
        if references is not None:
            self._watch.held[id(references)] = references  # which keeps its number from being used again
        return references

    def _looks_up(self, connection: bytes, request_id: str, shards: Sequence[Shard]) -> None:
        self._watch.uses("lookup", [space for shard in shards for space in shard.spaces])
        self._watch.looks_up(connection, request_id)

    def _elsewhere(self, call: Callable[[], None]) -> None:
        """The function may come at once, on another thread: one that waits for a lock of the module's own is noted, and
        left to end when that lock is free."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised again where the module called
                raised.append(error)

        thread = threading.Thread(target=run, name="on-lookup", daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        if thread.is_alive():
            self._watch.stuck.add(self._watch.operation)
        if raised:
            raise raised[0]
