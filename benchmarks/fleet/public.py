"""LMCache 0.5.6's two structures for the same, in its environment: `KeyDirectory` of its coordinator, and `RegistryTree` of
its older controller.  Nothing is imported but the package's own modules."""

from __future__ import annotations

from typing import Any

from benchmarks.fleet.keys import HASH_BYTES, integers

BATCH = 512
MODEL = "meta-llama/Llama-3.1-8B"
KV_RANK = 65_537
OBJECT_BYTES = 32 << 20


def name(instance: int) -> str:
    return f"instance-{instance:04d}"


class PublicDirectory:
    def __init__(self) -> None:
        from lmcache.v1.distributed import api
        from lmcache.v1.mp_coordinator import api as coordinator
        from lmcache.v1.mp_coordinator.views.key_directory import KeyDirectory

        self._directory: Any = KeyDirectory()
        self._api: Any = api
        self._coordinator: Any = coordinator

    def prepared(self, instance: int, hashes: bytes) -> Any:
        """As a report for an instance, or as keys to look up for instance 0."""
        split = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        if instance == 0:
            return [self._api.ObjectKey(chunk_hash=each, model_name=MODEL, kv_rank=KV_RANK) for each in split]
        api = self._coordinator
        return [
            api.CacheEventBatch(
                instance_id=name(instance),
                incarnation=1,
                seq=number + 1,
                event_type=api.CacheEventType.STORE,
                tier=self._api.Tier.L1,
                backend="dram",
                entries=[
                    api.CacheEventEntry(
                        key=self._api.EncodedObjectKey(chunk_hash_hex=each.hex(), model_name=MODEL, kv_rank=KV_RANK),
                        size_bytes=OBJECT_BYTES,
                    )
                    for each in split[at : at + BATCH]
                ],
                ts=1.0,
            )
            for number, at in enumerate(range(0, len(split), BATCH))
        ]

    def report(self, instance: int, batches: Any) -> None:
        for batch in batches:
            self._directory.consume(batch)

    def found(self, keys: Any) -> int:
        return len(self._directory.lookup(keys))

    def deregister(self, instance: int) -> None:
        self._directory.fence_instance(name(instance))


class PublicTree:
    def __init__(self) -> None:
        from lmcache.v1.cache_controller import message
        from lmcache.v1.cache_controller.utils import RegistryTree

        self._tree: Any = RegistryTree()
        self._message: Any = message

    def prepared(self, instance: int, hashes: bytes) -> Any:
        keys = integers(hashes)
        if instance == 0:
            return keys
        message = self._message
        return [
            message.BatchedKVOperationMsg(
                instance_id=name(instance),
                worker_id=0,
                location="LocalCPUBackend",
                operations=[
                    message.KVOpEvent(op_type=message.OpType.ADMIT, key=key, seq_num=at + number)
                    for number, key in enumerate(keys[at : at + BATCH])
                ],
            )
            for at in range(0, len(keys), BATCH)
        ]

    def report(self, instance: int, batches: Any) -> None:
        self._tree.register_worker(name(instance), 0, "127.0.0.1", 8000, f"127.0.0.1:{instance}", None, 0.0)
        for batch in batches:
            self._tree.handle_batched_kv_operations(batch)

    def found(self, keys: Any) -> int:
        return sum(self._tree.find_kv(key) is not None for key in keys)

    def deregister(self, instance: int) -> None:
        self._tree.deregister_worker(name(instance), 0)
