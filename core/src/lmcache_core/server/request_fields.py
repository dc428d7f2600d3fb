"""What a request of an engine names, checked: model, salt, request, trace, and the chunks of a transfer."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lmcache_client.engine_key import EngineKey
from lmcache_client.errors import ProtocolError
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.operation import Call
from lmcache_core.contracts.request_module import ModuleContext, SpaceFields, Worker
from lmcache_core.contracts.storage import READERS_MAX, StoredSpace
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.model.keys import CANONICAL_MAX_BYTES, pack_kv_rank
from lmcache_core.model.names import EMPTY_SALT_WORD, parse_salt, registered_name

logger = logging.getLogger(__name__)


REQUEST_ID_CHARS_MAX: Final = 1024


def check_names(key: EngineKey) -> None:
    """Raises ProtocolError for a model without a name, for names that are too long, since no object has longer ones of model
    and salt, and for salts that cannot be written where a tenant is named: a quota, a filter or a pin could not name them."""
    if not key.model_name:  # lookups come through here: no call where nothing is wrong
        check_model_name(key.model_name)
    if key.cache_salt == EMPTY_SALT_WORD:
        raise ProtocolError(
            f"cache_salt '{EMPTY_SALT_WORD}' is how the empty salt is written; choose another name for the tenant"
        )
    if key.cache_salt:
        try:
            parse_salt(key.cache_salt)
        except ValueError as error:
            raise ProtocolError(f"cache_salt: {error}") from None
    if len(key.model_name) + len(key.cache_salt) > CANONICAL_MAX_BYTES:
        raise ProtocolError(
            f"model_name and cache_salt have {len(key.model_name)} and {len(key.cache_salt)} characters; together they "
            f"have at most {CANONICAL_MAX_BYTES}"
        )
    if len(key.request_id) > REQUEST_ID_CHARS_MAX:
        check_request_id(key.request_id)


def check_lookup_key(key: EngineKey) -> None:
    """As `check_names`, and for a world that has no shard numbers, and for more readers of a shard than can be reserved."""
    check_names(key)
    pack_kv_rank(key.world_size, 0)
    if not 0 <= key.num_kv_readers <= READERS_MAX:
        raise ProtocolError(f"num_kv_readers is {key.num_kv_readers}; 0 to {READERS_MAX} workers may read a shard")


def check_model_name(model_name: str) -> None:
    """Raises ProtocolError for none."""
    if not model_name:
        raise ProtocolError("model_name is empty; the engine must name the model that its chunks belong to")


def check_request_id(request_id: str) -> None:
    """Raises ProtocolError for one that is too long."""
    if len(request_id) > REQUEST_ID_CHARS_MAX:
        raise ProtocolError(f"request_id has {len(request_id)} characters; it has at most {REQUEST_ID_CHARS_MAX}")


class SaltGate:
    """With `reject_unsalted`, requests without a cache salt are refused, counted, and logged now and then.  Any thread."""

    def __init__(self, reject_unsalted: bool, clock: Clock) -> None:
        self.reject_unsalted = reject_unsalted
        """May be set at any time, for what comes from then on."""
        self._faults = FaultLog(logger, clock, "port=engine")
        self._lock = threading.Lock()
        self.refused = 0
        """Operations since the start; one request of an engine is several."""

    def admits(self, cache_salt: str) -> bool:
        """As `ModuleContext.admits_salt`."""
        if cache_salt or not self.reject_unsalted:
            return True
        with self._lock:
            self.refused += 1
        self._faults.warning(
            "operations without a cache salt are refused, their engines run uncached refused=%d; "
            "give requests a salt, or leave out --reject-unsalted",
            self.refused,
        )
        return False


KEYS: Final = ("traceparent", "lmcache.traceparent")
"""Entries of `request_configs` that are looked at; engines pass on only those that begin with `lmcache.`."""
_CHARS: Final = 55
_CHARS_MAX: Final = 512
"""A later version of the format may say more behind what this one knows."""
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_context(request_configs: Mapping[str, Any]) -> str | None:
    """The W3C `traceparent` of a request, its first 55 characters; None where there is no valid one."""
    for key in KEYS:
        value = request_configs.get(key)
        if isinstance(value, str) and len(value) <= _CHARS_MAX and _TRACEPARENT.fullmatch(value[:_CHARS]):
            is_known = len(value) == _CHARS
            if is_known or (value[_CHARS] == "-" and not value.startswith("00")):
                return value[:_CHARS]
    return None


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
        context.workers.learn_shard(worker, key.worker_id)
    if worker.shard != key.worker_id:
        raise ProtocolError(f"instance {instance_id} is shard {worker.shard}, not {key.worker_id}")
    tokens = context.chunk_tokens
    if key.start % tokens or not 0 <= key.start <= key.end:
        raise ProtocolError(f"the range {key.start} to {key.end} does not start at a chunk of {tokens} tokens")
    first = key.start // tokens
    hashes = context.hasher.chunk_hashes(key.token_ids, key.end)[first:]
    return TransferRange(worker, SpaceFields(key.model_name, key.cache_salt), rank, hashes, first)


def store_patience(call: Call) -> Callable[[], bool] | None:
    """The `may_wait` of `Storage.reserve`: never on the router's thread, and only until others wait for this one."""
    return (lambda: not call.others_wait) if call.may_wait else None
