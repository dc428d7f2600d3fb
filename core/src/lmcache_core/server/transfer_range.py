"""Which chunks a worker's transfer is about: what all request modules that move bytes ask first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_client.messages import EngineKey
from lmcache_core.contracts.operation import Call
from lmcache_core.contracts.request_module import ModuleContext, SpaceFields, Worker
from lmcache_core.contracts.storage import StoredSpace
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.model.model_name import registered_name
from lmcache_core.server.request_names import check_names


class TransferRange(NamedTuple):
    """Whole chunks of one request, for one worker."""

    worker: Worker
    fields: SpaceFields
    kv_rank: int
    hashes: Sequence[bytes]
    """Of the chunks from `first_chunk` on, in order."""
    first_chunk: int

    @property
    def end_chunk(self) -> int:
        return self.first_chunk + len(self.hashes)

    def space(self, context: ModuleContext, object_group: int = 0) -> StoredSpace:
        """The key space of one object group of this worker."""
        layout = self.worker.groups[object_group].layout
        return context.space(self.fields, self.kv_rank, layout, object_group)


def transfer_range(context: ModuleContext, key: EngineKey, instance_id: int) -> TransferRange | None:
    """The chunks that `key` means for this worker, which has spoken now; its shard is learned here.  None when the worker
    is not registered or the salt is not admitted: answer as if nothing were cached, and store nothing.  Raises
    ProtocolError when the key cannot be this worker's.  Any thread."""
    worker = context.workers.find(instance_id)
    if worker is None or not context.workers.touch(worker):
        return None
    check_names(key)
    names = (key.model_name, registered_name(key.model_name))
    if worker.model_name not in names or key.world_size != worker.world_size:
        raise ProtocolError(
            f"instance {instance_id} is registered for {worker.model_name} (world size {worker.world_size}), "
            f"not for {key.model_name} ({key.world_size})"
        )
    if key.worker_id is None:
        raise ProtocolError("a transfer names its worker_id")
    rank = pack_kv_rank(key.world_size, key.worker_id)
    if not context.admits_salt(key.cache_salt):
        return None
    if worker.shard is None:
        worker.shard = key.worker_id
    if worker.shard != key.worker_id:
        raise ProtocolError(f"instance {instance_id} is shard {worker.shard}, not {key.worker_id}")
    tokens = context.chunk_tokens
    if key.start % tokens or not 0 <= key.start <= key.end:
        raise ProtocolError(f"the range {key.start} to {key.end} does not start at a chunk of {tokens} tokens")
    first = key.start // tokens
    hashes = context.hasher.chunk_hashes(key.request_id, key.token_ids, key.end)[first:]
    return TransferRange(worker, SpaceFields(key.model_name, key.cache_salt), rank, hashes, first)


def store_patience(call: Call) -> Callable[[], bool] | None:
    """What `Storage.reserve` is told of waiting for room: never on the router's thread, and only until others wait for
    this one."""
    return (lambda: not call.others_wait) if call.may_wait else None
