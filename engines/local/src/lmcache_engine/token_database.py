"""From tokens to chunks and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from lmcache_client.engine_key import PADDING, TokenSequence, array_header, encode_tokens
from lmcache_client.external_hashes import ExternalHashes
from lmcache_client.hash_chain import Blake3Chain, Sha256CborChain, read_prompt
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.keys import SALT, CacheEngineKey
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_kv_identity import approximate_name, split_segments

_PADDING: Final = b"\xce" + PADDING.to_bytes(4, "big")
"""A padding token as it is encoded; no other token has its bytes."""

_encode = msgspec.msgpack.Encoder().encode

Tokens = Any
"""Token ids: a list, or a tensor or array of one dimension."""


class Hasher(Protocol):
    """Core's: a prompt that begins as an earlier one is compared, and only the rest is hashed."""

    def chunk_hashes(self, token_ids: TokenSequence, end: int) -> Sequence[bytes]: ...


def token_list(tokens: Tokens) -> list[int]:
    """Raises ValueError unless they are integers in one dimension."""
    values = _listed(tokens)
    if not all(map(int.__instancecheck__, values)):
        wrong = next(each for each in values if not isinstance(each, int))
        raise ValueError(f"tokens are integers in one dimension, not {wrong!r:.80}")
    return values


def _listed(tokens: Tokens) -> list[int]:
    """A list is itself: prompts are long."""
    if isinstance(tokens, list):
        return tokens
    found: list[int] = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    return found


def _sequence(tokens: Tokens, salt: str) -> TokenSequence:
    """Not looked at one by one: the hasher refuses what cannot be a token id.  Raises ValueError for what cannot be encoded."""
    try:
        encoded = memoryview(_encode(_listed(tokens)))
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens are integers of at most 64 bits in one dimension: {error}") from None
    count, header = array_header(encoded)
    return TokenSequence(count, encoded[header:], salt)


def read_hashes(hashes: Sequence[bytes | int], offsets: Sequence[int] | None, chunk_tokens: int) -> ExternalHashes:
    """`offsets`: the tokens that each hash is for.  Raises ValueError for others than a whole chunk, for another number of
    them, for hashes that one algorithm does not give, and for one that is there twice: its chunks have other tokens before
    them, so that their bytes are not the same."""
    if offsets is None or len(offsets) != len(hashes):
        raise ValueError(f"{len(hashes)} hashes need as many offsets: the tokens that each is for")
    if others := [each for each in offsets if each != chunk_tokens]:
        raise ValueError(f"an offset is {others[0]}; offsets are multiples of the chunk, one for each: {chunk_tokens}")
    external = ExternalHashes.of(hashes)
    if len(set(external.hashes)) < len(hashes):
        raise ValueError("a hash is there twice: each is of all tokens up to the end of its chunk")
    return external


class ChunkedTokenDatabase:
    """Cuts prompts into chunks of `chunk_size` tokens.  A chunk's hash covers all tokens before it.

    What is left behind the last whole chunk is stored with `save_unfull_chunk` alone, under a hash of just these tokens.  Safe
    from any thread."""

    def __init__(self, config: LMCacheEngineConfig | None = None, metadata: LMCacheMetadata | None = None) -> None:
        config = config or LMCacheEngineConfig.from_defaults()
        self.chunk_size: int = config.chunk_size
        self.save_unfull_chunk: bool = config.save_unfull_chunk
        self._metadata = metadata
        self._chain: Blake3Chain | Sha256CborChain = (
            Blake3Chain(self.chunk_size, read_prompt, False)
            if config.hash_algorithm == "blake3"
            else Sha256CborChain(self.chunk_size, config.hash_seed)
        )
        self.block_tokens = 1
        """A last chunk has a whole number of these; the engine says what its KV cache has."""
        self.hasher: Hasher | None = None
        """The engine's, once it has one."""

    def covered(self, tokens: int) -> int:
        """How many of a prompt's tokens are in chunks."""
        unit = self.block_tokens if self.save_unfull_chunk else self.chunk_size
        return tokens // unit * unit

    def chunk_hashes(self, tokens: Tokens, salt: str = "") -> Sequence[bytes]:
        """Of all chunks.  Raises ValueError for what is not token ids."""
        sequence = _sequence(tokens, salt)
        if _PADDING in bytes(sequence.encoded):
            token_list(tokens)
            raise ValueError(f"token {PADDING} cannot be a model's: it marks what a last chunk lacks")
        end = self.covered(sequence.count)
        if lacking := -end % self.chunk_size:
            sequence = _sequence([*_listed(tokens)[:end], *[PADDING] * lacking], salt)
        if self.hasher is not None:
            return self.hasher.chunk_hashes(sequence, sequence.count)
        return self._chain.extend([], sequence.encoded, 0, sequence.count)[0]

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
        tokens: Tokens = None,
        hashes: Sequence[bytes | int] | None = None,
        offsets: Sequence[int] | None = None,
        mask: Any = None,
        make_key: bool = True,
        request_configs: dict[str, Any] | None = None,
    ) -> Iterator[tuple[int, int, CacheEngineKey | bytes]]:
        """Start, end and key of each chunk that the mask does not leave out; its hash where `make_key` is False."""
        if hashes is not None:
            found = read_hashes(hashes, offsets, self.chunk_size).hashes
            count = end = len(found) * self.chunk_size
        else:
            found = self.chunk_hashes(tokens, str((request_configs or {}).get(SALT, "")))
            count, end = len(tokens), self.covered(len(tokens))
        for number in range(self.first_chunk(mask, count), len(found)):
            key = _key(self._metadata, found[number], request_configs) if make_key else found[number]
            yield number * self.chunk_size, min((number + 1) * self.chunk_size, end), key


class SegmentTokenDatabase:
    """Cuts prompts at the tokens of `blend_special_str`.  A segment's hash covers its own tokens alone: its KV depends on what
    was before it, so that its keys name approximate KV, for who computes a part of it again.  Safe from any thread."""

    def __init__(
        self,
        config: LMCacheEngineConfig | None = None,
        metadata: LMCacheMetadata | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """`encode`: text to tokens, without those that begin a prompt; None: by the tokenizer of transformers.  Raises
        ValueError where the separator has no tokens, or nothing says them."""
        config = config or LMCacheEngineConfig.from_defaults()
        self._metadata = metadata
        self.separator = token_list((encode or _encoder(metadata))(config.blend_special_str))
        split_segments([], self.separator)

    def process_tokens(
        self,
        tokens: Tokens,
        mask: Any = None,
        make_key: bool = True,
        request_configs: dict[str, Any] | None = None,
    ) -> Iterator[tuple[int, int, CacheEngineKey | bytes]]:
        """Start, end and key of each segment that begins where the mask is True; its hash where `make_key` is False."""
        ids = token_list(tokens)
        wanted = [True] * len(ids) if mask is None else list(map(bool, mask))
        if len(wanted) != len(ids):
            raise ValueError(f"a mask of {len(wanted)} for {len(ids)} tokens; it has one value for each")
        for segment in split_segments(ids, self.separator):
            if not wanted[segment.start]:
                continue
            encoded = TokenSequence.of(encode_tokens(ids[segment.start : segment.stop]), "").encoded
            chain = Blake3Chain(len(segment), read_prompt, False)
            (chunk_hash,) = chain.extend([], encoded, 0, len(segment))[0]
            key = _key(self._metadata, chunk_hash, request_configs, approximate_name) if make_key else chunk_hash
            yield segment.start, segment.stop, key


def _key(
    about: LMCacheMetadata | None,
    chunk_hash: bytes,
    request_configs: dict[str, Any] | None,
    named: Callable[[str], str] = str,
) -> CacheEngineKey:
    if about is None:
        raise ValueError("a key needs metadata; give it to the token database, or ask with make_key=False")
    model = named(about.model_name)
    return CacheEngineKey(model, about.world_size, about.worker_id, chunk_hash, about.kv_dtype, request_configs)


def _encoder(metadata: LMCacheMetadata | None) -> Callable[[str], Sequence[int]]:
    try:
        from transformers import AutoTokenizer  # here: engines that chunk by size need no tokenizer

        tokenizer = AutoTokenizer.from_pretrained(metadata.model_name if metadata else "")
    except (ImportError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"blend_special_str needs the model's tokenizer: give encode= ({reason})") from None
    return lambda text: tokenizer.encode(text, add_special_tokens=False)
