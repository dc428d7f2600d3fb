"""Request modules that use storage, hasher and workers: a right one and mutants."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

from lmcache_client.engine_key import EngineKey
from lmcache_client.operations import Operation
from lmcache_core.contracts.operation import DEFERRED, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule, SpaceFields, Worker
from lmcache_core.contracts.storage import LookupRequest, Shard, StoredSpace
from lmcache_core.model.keys import pack_kv_rank
from lmcache_devkit.request_module_suite import RequestModuleSuite
from plugins.devkit.tests.mutants.planted import Planted

COUNT = Operation("acme_count", None, (EngineKey, int), int, 0)
READ = Operation("acme_read", None, (EngineKey, int), int, 0)
SIZE = Operation("acme_size", None, (int,), int, 0)


class Right(RequestModule):
    """Counts chunks in both tiers, reads them, tells the size of one.  Each mutant below is wrong in one thing."""

    def __init__(self, settings: None, context: ModuleContext) -> None:
        self.context = context
        self.numbers = itertools.count()
        self.lock = threading.Lock()  # guards `pending`
        self.pending: dict[str, Call] = {}

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(COUNT, self.count, HandlerMode.POOLED),
            Handler(READ, self.read, HandlerMode.POOLED),
            Handler(SIZE, self.size, HandlerMode.INLINE),
        ]

    def size(self, call: Call, instance_id: int) -> int:
        worker = self.context.workers.find(instance_id)
        return worker.layout.payload_bytes if worker else 0

    # --- how many chunks are there

    def count(self, call: Call, key: EngineKey, instance_id: int) -> object:
        worker = self.context.workers.find(instance_id)
        if worker is None or not self.admits(key):
            return 0
        name = self.name(key)
        hashes = self.context.hasher.chunk_hashes(key.token_ids, key.end)
        self.context.storage.lookup(
            LookupRequest(call.connection, name, (Shard((self.space(worker, key),)),), hashes, 1)
        )
        call.defer(30.0, 0)
        with self.lock:
            self.pending[name] = call
        self.await_answer(call.connection, name)
        return DEFERRED

    def await_answer(self, connection: bytes, name: str) -> None:
        self.context.storage.on_lookup(connection, name, lambda found: self.answer(connection, name, found))

    def answer(self, connection: bytes, name: str, found: int) -> bool:
        with self.lock:
            call = self.pending.pop(name)
        self.context.storage.end_lookup(connection, name)
        return self.reply(call, found)

    def reply(self, call: Call, found: int) -> bool:
        return call.reply(found)

    def name(self, key: EngineKey) -> str:
        """A request id of its own, so that the engine's lookup is left alone."""
        return f"acme:{next(self.numbers)}"

    # --- reading

    def read(self, call: Call, key: EngineKey, instance_id: int) -> int:
        """The sum of the first bytes of the chunks."""
        worker = self.context.workers.find(instance_id)
        if worker is None or not self.admits(key):
            return 0
        hashes = self.context.hasher.chunk_hashes(key.token_ids, key.end)
        storage = self.context.storage
        references = storage.acquire(worker.token, key.request_id, self.space(worker, key), hashes, 0)
        if references is None:
            return 0
        with storage.using(references) as alive:
            total = sum(storage.payload(slot)[0] for slot in references.slots) if alive else 0
        storage.release(references)
        return total

    def admits(self, key: EngineKey) -> bool:
        return self.context.admits_salt(key.cache_salt)

    def space(self, worker: Worker, key: EngineKey) -> StoredSpace:
        return self.context.space(SpaceFields(worker.model_name, key.cache_salt), pack_kv_rank(1, 0), worker.layout)


PLANTED = Planted("storage_modules.py", Right)


@PLANTED.killed_by("what_is_held_does_not_grow_with_requests", "references are open")
class NeverReleases(Right):
    def read(self, call: Call, key: EngineKey, instance_id: int) -> int:
        worker = self.context.workers.find(instance_id)
        if worker is None or not self.admits(key):
            return 0
        hashes = self.context.hasher.chunk_hashes(key.token_ids, key.end)
        references = self.context.storage.acquire(worker.token, key.request_id, self.space(worker, key), hashes, 0)
        return 0 if references is None else len(references.slots)


@PLANTED.killed_by("what_is_held_does_not_grow_with_requests", "chunks are held")
class NeverEndsItsLookups(Right):
    def answer(self, connection: bytes, name: str, found: int) -> bool:
        with self.lock:
            call = self.pending.pop(name)
        return self.reply(call, found)


@PLANTED.killed_by("slots_are_given_to_registered_workers_only", "no registered worker has the tokens")
class DoesNotLookForTheWorker(Right):
    """Takes the number that the engine gave for the token of a registration."""

    def read(self, call: Call, key: EngineKey, instance_id: int) -> int:
        if not self.admits(key):
            return 0
        layout = self.context.workers.groups(key.model_name, 1, 0)[0][0][0].layout
        space = self.context.space(SpaceFields(key.model_name, key.cache_salt), pack_kv_rank(1, 0), layout)
        hashes = self.context.hasher.chunk_hashes(key.token_ids, key.end)
        references = self.context.storage.acquire(instance_id + 100_000, key.request_id, space, hashes, 0)
        if references is not None:
            self.context.storage.release(references)
        return 0


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused", "AttributeError")
class TrustsThatTheWorkerIsThere(Right):
    def size(self, call: Call, instance_id: int) -> int:
        worker = self.context.workers.find(instance_id)
        return worker.layout.payload_bytes  # type: ignore[union-attr]


@PLANTED.killed_by("what_is_deferred_is_replied_to", "acme_count: a deferred call was not replied to")
class NeverReplies(Right):
    def reply(self, call: Call, found: int) -> bool:
        return True


@PLANTED.killed_by("what_is_deferred_is_replied_to", "the chunks are nowhere")
class RepliesToHitsOnly(Right):
    def reply(self, call: Call, found: int) -> bool:
        return call.reply(found) if found else True


@PLANTED.killed_by("what_is_deferred_is_replied_to", "a deferred call was not replied to; the chunks are in L2")
class RepliesToWhatIsThereAtOnce(Right):
    """Asks for the result where it should wait for it."""

    def await_answer(self, connection: bytes, name: str) -> None:
        found = self.context.storage.lookup_result(connection, name)
        if found is not None:
            self.answer(connection, name, found)


@PLANTED.killed_by("chunks_are_asked_for_with_the_salt_of_the_request", "with the salt 'tenant' used chunks of")
class DropsTheSalt(Right):
    def space(self, worker: Worker, key: EngineKey) -> StoredSpace:
        return self.context.space(SpaceFields(worker.model_name, ""), pack_kv_rank(1, 0), worker.layout)


@PLANTED.killed_by("chunks_are_asked_for_with_the_salt_of_the_request", "used chunks of")
class RemembersTheFirstSalt(Right):
    """As a cache of key spaces does whose key has no salt."""

    known: StoredSpace | None = None

    def __init__(self, settings: None, context: ModuleContext) -> None:
        super().__init__(settings, context)
        worker = next(worker for worker in [context.workers.find(1)] if worker)
        self.known = context.space(SpaceFields(worker.model_name, "first"), pack_kv_rank(1, 0), worker.layout)

    def space(self, worker: Worker, key: EngineKey) -> StoredSpace:
        assert self.known is not None
        return self.known


@PLANTED.killed_by("a_salt_that_is_not_admitted_is_not_served", "that `admits_salt` refuses")
class IgnoresTheGate(Right):
    def admits(self, key: EngineKey) -> bool:
        return True


@PLANTED.killed_by("memory_does_not_grow_with_requests", "bytes more after")
class RemembersEveryRequest(Right):
    def __init__(self, settings: None, context: ModuleContext) -> None:
        super().__init__(settings, context)
        self.seen: dict[str, int] = {}

    def size(self, call: Call, instance_id: int) -> int:
        return super().size(call, instance_id)

    def read(self, call: Call, key: EngineKey, instance_id: int) -> int:
        self.seen[key.request_id] = instance_id
        return super().read(call, key, instance_id)


@PLANTED.killed_by("what_runs_on_the_routers_thread_does_not_wait", r"the fastest took \d\d ms \(acme_size\)")
class SleepsInline(Right):
    def size(self, call: Call, instance_id: int) -> int:
        time.sleep(0.05)
        return super().size(call, instance_id)


@PLANTED.killed_by("a_request_keeps_its_own_lookup", "acme_count: looks up under the engine's request id")
class TakesTheEnginesRequestId(Right):
    def name(self, key: EngineKey) -> str:
        return key.request_id


@PLANTED.killed_by("no_lock_is_held_while_a_lookup_is_answered", "waits for a lock that its caller holds")
class HoldsItsLock(Right):
    def await_answer(self, connection: bytes, name: str) -> None:
        with self.lock:
            super().await_answer(connection, name)


@PLANTED.killed_by("no_lock_is_held_while_a_lookup_is_answered", "waits for a lock that its caller holds")
class HoldsALockThatItsThreadMayTakeTwice(Right):
    """Works wherever the function comes on the same thread."""

    def __init__(self, settings: None, context: ModuleContext) -> None:
        super().__init__(settings, context)
        self.gate = threading.RLock()

    def await_answer(self, connection: bytes, name: str) -> None:
        with self.gate:
            super().await_answer(connection, name)

    def answer(self, connection: bytes, name: str, found: int) -> bool:
        with self.gate:
            return super().answer(connection, name, found)


globals().update(PLANTED.suites(RequestModuleSuite, __name__))
