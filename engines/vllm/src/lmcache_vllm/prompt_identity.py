"""The identity of a prompt in a cache key: token ids, and whatever else its KV depends on.

Multimodal placeholders are overwritten with values that follow from the item, by the rule of the stock connector, so that
both share entries: 31 bits for each token. Where an item has too few tokens to be distinguished by that, a digest of it
is part of the model name, and so is the content of a LoRA adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from lmcache_client.engine_key import PADDING, encode_tokens
from lmcache_kv_identity import fingerprint

ITEM_TOKENS: Final = 5
"""Number of values that distinguish items: 155 bits."""
_VALUE_MASK: Final = 0x7FFFFFFF
_ARRAY32: Final = b"\xdd"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Tokens `[offset, offset + length)` mean an image, a sound, ...; `identifier` is a hash of its content."""

    identifier: str
    offset: int
    length: int


def placeholder_values(identifier: str, length: int) -> tuple[int, ...]:
    """What `length` placeholder tokens of that item become."""
    seed = sha256(identifier.encode()).digest()
    values: list[int] = []
    counter = 0
    while len(values) < length:
        values += _values(sha256(seed + counter.to_bytes(8, "big")).digest())
        counter += 1
    return tuple(values[:length])


def _values(digest: bytes) -> Iterator[int]:
    return (int.from_bytes(digest[at : at + 4], "big") & _VALUE_MASK for at in range(0, len(digest), 4))


class PromptIdentity:
    """The token ids of one request as they stand in its keys, encoded once, chunk by chunk, as the prompt grows.

    `tokens` is vLLM's own list: what is behind the last encoded chunk may still change. One thread."""

    def __init__(
        self, tokens: Sequence[int], chunk_tokens: int, placeholders: Sequence[Placeholder] = (), adapter: str = ""
    ) -> None:
        """`adapter`: the content of the LoRA adapter that the request is computed with."""
        self._tokens = tokens
        self._chunk_tokens = chunk_tokens
        self._overlays = [(item.offset, placeholder_values(item.identifier, item.length)) for item in placeholders]
        self._encoded = bytearray()
        self._ends = [0]  # of the encoding, by number of chunks
        # An item counts in the chunk in which it begins: that chunk's KV follows from all of it already, and the hashes of
        # later chunks from that chunk's.
        short = [
            item.identifier
            for item in placeholders
            if min(item.length, chunk_tokens - item.offset % chunk_tokens) < ITEM_TOKENS
        ]
        self.variant = fingerprint({"adapter": adapter, "items": short}) if adapter or short else ""
        """Of the model name; empty: the tokens say it all."""

    def tail_end(self, end: int, block_tokens: int) -> int:
        """Where the whole blocks of the first `end` tokens end; where the whole chunks do if the tokens behind those do not
        say which item they belong to."""
        whole, tail = (end // tokens * tokens for tokens in (self._chunk_tokens, block_tokens))
        unclear = any(max(whole, tail - ITEM_TOKENS + 1) <= offset < tail for offset, _ in self._overlays)
        return whole if unclear else tail

    def encoded(self, end: int) -> bytes:
        """The msgpack array of the first `end` token ids. Where `end` is not a multiple of the chunk, the last chunk is
        filled with padding."""
        tail = end % self._chunk_tokens
        return self._array(end, self._chunk_tokens - tail if tail else 0)

    def encoded_unpadded(self, end: int) -> bytes:
        """The msgpack array of the first `end` token ids and nothing else."""
        return self._array(end, 0)

    def _array(self, end: int, padding: int) -> bytes:
        chunks, tail = divmod(end, self._chunk_tokens)
        while len(self._ends) <= chunks:
            first = (len(self._ends) - 1) * self._chunk_tokens
            self._encoded += _integers(self._ids(first, first + self._chunk_tokens))
            self._ends.append(len(self._encoded))
        encoded = bytes(self._encoded[: self._ends[chunks]])
        if tail:
            encoded += _integers([*self._ids(end - tail, end), *[PADDING] * padding])
        return _ARRAY32 + (end + padding).to_bytes(4, "big") + encoded

    def _ids(self, start: int, end: int) -> list[int]:
        ids = list(self._tokens[start:end])
        for offset, values in self._overlays:
            first, last = max(start, offset), min(end, offset + len(values))
            if first < last:
                ids[first - start : last - start] = values[first - offset : last - offset]
        return ids


def _integers(ids: list[int]) -> memoryview:
    return memoryview(encode_tokens(ids))[_header_bytes(len(ids)) :]


def _header_bytes(count: int) -> int:
    return 1 if count <= 0x0F else 3 if count <= 0xFFFF else 5
