"""Which shards a chunk of a model has, and in which layouts each may be there."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.request_module import ModuleContext, ObjectGroup, SpaceFields
from lmcache_core.contracts.storage import Shard
from lmcache_core.model.keys import pack_kv_rank


def registered_shards(context: ModuleContext, fields: SpaceFields, world_size: int) -> tuple[Shard, ...]:
    """By what workers have registered (docs/internals/object-format.md, "Object key"); nothing when no worker could read one of
    them."""
    shards: list[Shard] = []
    for worker_id in range(world_size):
        registered, every = context.workers.groups(fields.model_name, world_size, worker_id)
        if not registered:
            return ()
        rank = pack_kv_rank(world_size, worker_id)
        if every:
            for groups in registered:
                shards += [
                    Shard((context.space(fields, rank, group.layout, number),), group.window_chunks)
                    for number, group in enumerate(groups)
                ]
        else:
            shards += _any_of(context, fields, rank, registered)
    return tuple(dict.fromkeys(shards))


def _any_of(
    context: ModuleContext, fields: SpaceFields, rank: int, registered: Sequence[tuple[ObjectGroup, ...]]
) -> list[Shard]:
    """Nobody knows yet which of these registrations the shard is: for each object group, a chunk in any of their layouts
    counts.  Only registrations with the most groups do, because a worker needs all of its own."""
    count = max(map(len, registered))
    alike = [groups for groups in registered if len(groups) == count]
    shards = []
    for number, row in enumerate(zip(*alike, strict=True)):
        spaces = tuple(dict.fromkeys(context.space(fields, rank, group.layout, number) for group in row))
        windows = [group.window_chunks for group in row]
        shards.append(Shard(spaces, None if None in windows else max(window or 1 for window in windows)))
    return shards
