"""Finds the chunks that an operator names, as a lookup of an engine would."""

from __future__ import annotations

from lmcache_client.engine_key import encode_tokens
from lmcache_client.errors import ProtocolError
from lmcache_core.contracts.cache_control import AddressedChunks, AddressError, ChunkAddress, UnknownShapeError
from lmcache_core.contracts.request_module import ModuleContext, SpaceFields
from lmcache_core.contracts.storage import Shard
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.server.registrations import registered_shards


class ChunkAddresses:
    """Resolves addresses by what workers have registered and by the server's hash chain."""

    def __init__(self, context: ModuleContext) -> None:
        self._context = context

    def resolve(self, address: ChunkAddress) -> AddressedChunks:
        try:
            shards = self._shards(address)
            if address.token_ids is None:
                return AddressedChunks(shards, list(dict.fromkeys(address.chunk_hashes or ())), is_prompt=False)
            encoded = encode_tokens(address.token_ids)
            hashes = self._context.hasher.chunk_hashes(encoded, len(address.token_ids))
            return AddressedChunks(shards, hashes, is_prompt=True)
        except (ProtocolError, ValueError) as error:  # a key that is too long, tokens that are none
            raise AddressError(str(error)) from None

    def _shards(self, address: ChunkAddress) -> tuple[Shard, ...]:
        fields = SpaceFields(self._registered_name(address), address.cache_salt)
        if address.layout is None:
            shards = registered_shards(self._context, fields, address.world_size)
            if not shards:
                raise _unknown_shape(address)
            return shards
        ranks = (pack_kv_rank(address.world_size, worker_id) for worker_id in range(address.world_size))
        return tuple(Shard((self._context.space(fields, rank, address.layout),)) for rank in ranks)

    def _registered_name(self, address: ChunkAddress) -> str:
        """Of a served name, the one under which its engines have registered."""
        name, workers = address.model_name, self._context.workers
        known, _ = workers.groups(name, address.world_size, 0)
        names = () if known else workers.model_names(name, address.world_size)
        if len(names) > 1:
            raise AddressError(
                f"engines serve '{name}' with KV that they do not share; give the name of one of them: {', '.join(names)}"
            )
        return names[0] if names else name


def _unknown_shape(address: ChunkAddress) -> UnknownShapeError:
    return UnknownShapeError(
        f"no worker of model '{address.model_name}' with a world size of {address.world_size} is registered, so that the "
        "shape of its chunks is not known; wait for its engine, or give the field 'layout'"
    )
