"""What stands for a prompt in a cache key: token ids, and in their place whatever else the KV cache depends on.

Multimodal placeholders are overwritten with values that follow from the item, by the rule of the stock connector, so
that both share entries. The stock connector leaves out which adapter (LoRA) computed the KV. Here an adapter's
name and path are mixed into the first eight tokens: they become 248 bits of a SHA-256 over name, path and those eight
tokens. Chunks are hashed as a chain, so that no chunk of such a prompt has the name of another adapter's, or of the
base model's: for that two SHA-256 prefixes would have to agree, or all eight values be token ids of a vocabulary, which
for 2**18 tokens happens once in 2**104.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from lmcache_core import encode_tokens

ADAPTER_TOKENS: Final = 8
"""How many tokens an adapter is mixed into; a chunk that is shorter cannot hold them."""
_VALUE_MASK: Final = 0x7FFFFFFF
_ARRAY32: Final = b"\xdd"
_ADAPTER_DOMAIN: Final = b"lmcache-node adapter v1\x00"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the request is computed with."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Tokens `[offset, offset + length)` stand for an image, a sound, ...; `identifier` is a hash of its content."""

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


def adapter_values(adapter: Adapter, first_tokens: Sequence[int]) -> tuple[int, ...]:
    """What the first ADAPTER_TOKENS tokens become."""
    digest = sha256(_ADAPTER_DOMAIN)
    for text in (adapter.name.encode(), adapter.path.encode()):
        digest.update(len(text).to_bytes(8, "big") + text)
    for token in first_tokens[:ADAPTER_TOKENS]:
        digest.update(token.to_bytes(8, "big", signed=True))
    return tuple(_values(digest.digest()))


def _values(digest: bytes) -> Iterator[int]:
    return (int.from_bytes(digest[at : at + 4], "big") & _VALUE_MASK for at in range(0, len(digest), 4))


class PromptIdentity:
    """The token ids of one request as they stand in its keys, encoded once, chunk by chunk, as the prompt grows.

    `tokens` is vLLM's own list: what is behind the last encoded chunk may still change. One thread."""

    def __init__(
        self,
        tokens: Sequence[int],
        chunk_tokens: int,
        placeholders: Sequence[Placeholder] = (),
        adapter: Adapter | None = None,
    ) -> None:
        """Raises ValueError where an adapter does not fit into a chunk."""
        if adapter and chunk_tokens < ADAPTER_TOKENS:
            raise ValueError(
                f"requests with an adapter need chunks of at least {ADAPTER_TOKENS} tokens, the server's have "
                f"{chunk_tokens}; raise its --chunk-size"
            )
        self._tokens = tokens
        self._chunk_tokens = chunk_tokens
        self._adapter = adapter
        self._overlays = [(item.offset, placeholder_values(item.identifier, item.length)) for item in placeholders]
        self._encoded = bytearray()
        self._ends = [0]  # of the encoding, after so many chunks

    def encoded(self, end: int) -> bytes:
        """The msgpack array of the first `end` token ids; `end` is a multiple of the chunk."""
        chunks = end // self._chunk_tokens
        while len(self._ends) <= chunks:
            self._encode_chunk(len(self._ends) - 1)
        return _ARRAY32 + end.to_bytes(4, "big") + self._encoded[: self._ends[chunks]]

    def _encode_chunk(self, index: int) -> None:
        start = index * self._chunk_tokens
        end = start + self._chunk_tokens
        ids = list(self._tokens[start:end])
        for offset, values in self._overlays:
            first, last = max(start, offset), min(end, offset + len(values))
            if first < last:
                ids[first - start : last - start] = values[first - offset : last - offset]
        if self._adapter and start == 0:
            ids[:ADAPTER_TOKENS] = adapter_values(self._adapter, ids)
        array = encode_tokens(ids)
        self._encoded += memoryview(array)[_header_bytes(len(ids)) :]
        self._ends.append(len(self._encoded))


def _header_bytes(count: int) -> int:
    return 1 if count <= 0x0F else 3 if count <= 0xFFFF else 5
