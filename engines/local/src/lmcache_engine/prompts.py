"""What a call is about: which chunks of which key space."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmcache_client import LMCacheError
from lmcache_client.external_hashes import KEY_BYTES, ExternalHashes
from lmcache_core import HashChain, KeySpace, StoredSpace, pack_kv_rank
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.keys import SALT, tagged_model, tags_of
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import PagedConnector, layout_of
from lmcache_engine.token_database import ChunkedTokenDatabase, Tokens, read_hashes


class Prompt(NamedTuple):
    space: StoredSpace
    tokens: int
    hashes: Sequence[bytes]
    """Of all whole chunks, and of a tail."""
    end: int
    """Behind the last token that is in a chunk."""


class Prompts:
    """Any thread."""

    def __init__(
        self,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        database: ChunkedTokenDatabase,
        pages: PagedConnector | None,
        has_tiers: bool,
    ) -> None:
        """`has_tiers`: what is stored leaves the process's memory."""
        self._metadata, self._database, self._pages, self._has_tiers = metadata, database, pages, has_tiers
        self._chain = HashChain.named(config.hash_algorithm)
        self._algorithm, self._seed = str(config.pre_caching_hash_algorithm), os.environ.get("PYTHONHASHSEED", "")

    def of_tokens(self, tokens: Tokens, configs: Mapping[str, Any] | None) -> Prompt:
        """Raises ValueError for what is not token ids."""
        try:
            hashes = self._database.chunk_hashes(tokens, _salt(configs))
        except LMCacheError as error:
            raise ValueError(str(error)) from None
        return Prompt(self._space(configs, "", self._chain), len(tokens), hashes, self._database.covered(len(tokens)))

    def of_hashes(
        self, hashes: Sequence[bytes | int], offsets: Sequence[int] | None, configs: Mapping[str, Any] | None
    ) -> Prompt:
        """Raises ValueError for what an engine cannot mean, and for hashes that must not leave the process where they would."""
        external = read_hashes(hashes, offsets, self._database.chunk_size)
        if self._has_tiers:
            try:
                external.check_lasting(self._algorithm)
            except ValueError as error:
                raise ValueError(f"{error} (pre_caching_hash_algorithm), or give tokens") from None
        return self._named_by(external, configs)

    def looked_up(
        self, hashes: Sequence[bytes | int], offsets: Sequence[int] | None, configs: Mapping[str, Any] | None
    ) -> list[Prompt]:
        """What hashes may mean: those of the token database, where they can be, or an engine's own."""
        external = read_hashes(hashes, offsets, self._database.chunk_size)
        own = Prompt(self._space(configs, "", self._chain), *_size(external, self._database.chunk_size))
        if external.size != KEY_BYTES:
            return [self.of_hashes(hashes, offsets, configs)]
        return (
            [own, self._named_by(external, configs)]
            if external.lasts(self._algorithm) or not self._has_tiers
            else [own]
        )

    def _named_by(self, external: ExternalHashes, configs: Mapping[str, Any] | None) -> Prompt:
        suffix = external.model_name("", self._algorithm, self._seed)
        return Prompt(self._space(configs, suffix, HashChain.EXTERNAL), *_size(external, self._database.chunk_size))

    def _space(self, configs: Mapping[str, Any] | None, suffix: str, chain: HashChain) -> StoredSpace:
        about, pages, chunk_tokens = self._metadata, self._pages, self._database.chunk_size
        layout = pages.layout if pages else layout_of(about, chunk_tokens)
        rank = pack_kv_rank(about.world_size, 0 if about.use_mla else about.worker_id)
        model = tagged_model(about.model_name, tags_of(configs)) + (pages.suffix if pages else "") + suffix
        space = KeySpace(model, rank, 0, _salt(configs), chunk_tokens, chain, layout.fingerprint)
        return StoredSpace(space, layout.payload_bytes)


def _salt(configs: Mapping[str, Any] | None) -> str:
    return str((configs or {}).get(SALT, ""))


def _size(external: ExternalHashes, chunk_tokens: int) -> tuple[int, Sequence[bytes], int]:
    tokens = len(external.hashes) * chunk_tokens
    return tokens, external.hashes, tokens
