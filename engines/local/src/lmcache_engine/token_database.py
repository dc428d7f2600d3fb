"""From tokens to chunks and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from lmcache_client.engine_key import TokenSequence, encode_tokens
from lmcache_client.hash_chain import Blake3Chain, Sha256CborChain, read_prompt
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.keys import SALT, CacheEngineKey
from lmcache_engine.metadata import LMCacheMetadata

Tokens = Any
"""Token ids: a list, or a tensor or array of one dimension."""


class Hasher(Protocol):
    """Core's: a prompt that begins as an earlier one is compared, and only the rest is hashed."""

    def chunk_hashes(self, token_ids: TokenSequence, end: int) -> Sequence[bytes]: ...


def token_list(tokens: Tokens) -> list[int]:
    """Raises ValueError unless they are integers in one dimension."""
    values = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    if not all(map(int.__instancecheck__, values)):
        raise ValueError(
            f"tokens are integers in one dimension, not {next(each for each in values if not isinstance(each, int))!r:.80}"
        )
    return values


class ChunkedTokenDatabase:
    """Cuts prompts into chunks of `chunk_size` tokens.  A chunk's hash covers all tokens before it.

    What is left behind the last whole chunk is not stored.  Safe from any thread."""

    def __init__(self, config: LMCacheEngineConfig | None = None, metadata: LMCacheMetadata | None = None) -> None:
        config = config or LMCacheEngineConfig.from_defaults()
        self.chunk_size: int = config.chunk_size
        self._metadata = metadata
        self._chain: Blake3Chain | Sha256CborChain = (
            Blake3Chain(self.chunk_size, read_prompt, False)
            if config.hash_algorithm == "blake3"
            else Sha256CborChain(self.chunk_size, config.hash_seed)
        )
        self.hasher: Hasher | None = None
        """The engine's, once it has one."""

    def chunk_hashes(self, tokens: Tokens, salt: str = "") -> Sequence[bytes]:
        """Of all whole chunks.  Raises ValueError for what is not token ids."""
        ids = token_list(tokens)
        try:
            sequence = TokenSequence.of(encode_tokens(ids), salt)
            if self.hasher is not None:
                return self.hasher.chunk_hashes(sequence, len(ids))
            return self._chain.extend([], sequence.encoded, 0, len(ids))[0]
        except OverflowError:
            raise ValueError("a token id has more than 64 bits") from None

    def first_chunk(self, mask: Any, tokens: int) -> int:
        """How many chunks the falses at the beginning of a mask leave out.  Raises ValueError for a mask of another form."""
        if mask is None:
            return 0
        values = mask.tolist() if hasattr(mask, "tolist") else list(mask)
        if len(values) != tokens:
            raise ValueError(f"a mask of {len(values)} for {tokens} tokens; it has one value for each")
        falses = len(values) - sum(map(bool, values))
        if any(values[:falses]):
            raise ValueError("a mask is False for a prefix of the tokens, and True behind it")
        if falses % self.chunk_size:
            raise ValueError("Falses in mask must be multiple of chunk_size")
        return falses // self.chunk_size

    def process_tokens(
        self,
        tokens: Tokens,
        mask: Any = None,
        make_key: bool = True,
        request_configs: dict[str, Any] | None = None,
    ) -> Iterator[tuple[int, int, CacheEngineKey | bytes]]:
        """Start, end and key of each chunk that the mask does not leave out; its hash where `make_key` is False."""
        salt = str((request_configs or {}).get(SALT, ""))
        hashes = self.chunk_hashes(tokens, salt)
        for number in range(self.first_chunk(mask, len(tokens)), len(hashes)):
            key = self._key(hashes[number], request_configs) if make_key else hashes[number]
            yield number * self.chunk_size, (number + 1) * self.chunk_size, key

    def _key(self, chunk_hash: bytes, request_configs: dict[str, Any] | None) -> CacheEngineKey:
        about = self._metadata
        if about is None:
            raise ValueError("a key needs metadata; give it to the token database, or ask with make_key=False")
        return CacheEngineKey(
            about.model_name, about.world_size, about.worker_id, chunk_hash, about.kv_dtype, request_configs
        )
