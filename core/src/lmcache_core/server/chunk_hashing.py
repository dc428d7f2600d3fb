"""From the keys that engines send to chunk hashes.  Tokens that came before are compared and not decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from lmcache_client.codec import Frame, OpenedFrame
from lmcache_client.engine_key import (
    NOTHING_KNOWN,
    EngineKey,
    KnownPrefix,
    TokenSequence,
    array_header,
    decode_fields,
    encode_header,
    encode_tokens,
    fields_behind,
    find_head,
    guess_salt,
    names_tokens,
    read_key,
    with_tokens,
)
from lmcache_client.errors import ProtocolError
from lmcache_client.external_hashes import EXTERNAL_NAME
from lmcache_client.hash_chain import Blake3Chain, Chain, Sha256CborChain
from lmcache_core.contracts.request_module import ReadTokens, TokenIds
from lmcache_core.kernels.choice import Kernels
from lmcache_core.model.keys import HashChain
from lmcache_core.server.prompt_memory import PromptMemory

HEADS_MAX: Final = 1024
"""Ways in which keys begin that are remembered: about one for each worker."""
DECODED_BYTES_MAX: Final = 4096
"""Up to this many unknown bytes, msgspec finds the end of the tokens sooner than the compiled kernel."""


class _Start(NamedTuple):
    """What is known of a frame before it is decoded."""

    head: bytes
    offset: int
    """Where the integers begin."""
    tokens: int
    """How many there are, says the header of their array."""
    salt: str
    known: KnownPrefix


class _OpenedKey:
    """Implements `lmcache_client.codec.OpenedFrame`."""

    __slots__ = ("_frame", "_reader", "_start", "unread_bytes")

    def __init__(self, reader: KeyReader, frame: memoryview, start: _Start | None) -> None:
        self._reader = reader
        self._frame = frame
        self._start = start
        self.unread_bytes = len(frame) - (start.offset + start.known.same if start else 0)

    def read(self) -> EngineKey:
        key = self._reader.read_from(self._frame, self._start) if self._start else None
        return self._reader.read_all(self._frame) if key is None else key


class KeyReader:
    """Implements `lmcache_client.codec.FrameReader` for EngineKey.  Safe from any thread.

    Whatever is remembered, a frame gives the same key or the same error: what is left out of the decoding is equal, byte
    for byte, to what was decoded before, and what turns out not to fit is decoded as a whole."""

    def __init__(self, chain: Chain, memory: PromptMemory) -> None:
        self._chain = chain
        self._memory = memory
        self._heads: dict[bytes, int] = {}
        """How frames begin that were read, and how many fields they have behind the tokens."""

    def open(self, frame: Frame) -> OpenedFrame:
        view = memoryview(frame)
        return _OpenedKey(self, view, self._start(view))

    def read_all(self, frame: memoryview) -> EngineKey:
        """Decode everything, and remember how this frame begins."""
        key = read_key(frame, self._chain.chunk_tokens)
        head = find_head(frame)
        fields = None if head is None else fields_behind(head)
        if head is not None and fields is not None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[head] = fields
        return key

    def read_from(self, frame: memoryview, start: _Start) -> EngineKey | None:
        """Decode what is not known.  None when the frame is not as it seemed."""
        known, chunk_tokens = start.known, self._chain.chunk_tokens
        left = start.tokens - len(known.hashes) * chunk_tokens
        if self._chain.releases_gil and len(frame) - start.offset - known.same > DECODED_BYTES_MAX:
            return self._read_tokens(frame, start, left)
        header = encode_header(left)
        begin = start.offset + known.end
        fields = _decode(frame, start, header, begin)
        if fields is None:
            return None
        end = begin + memoryview(fields.token_ids).nbytes - len(header)
        return with_tokens(fields, TokenSequence(start.tokens, frame[start.offset : end], start.salt, known))

    def _read_tokens(self, frame: memoryview, start: _Start, left: int) -> EngineKey | None:
        """Let the chain find the end of the tokens, as it hashes them."""
        known, encoded = start.known, frame[start.offset :]
        try:
            new, ends, end = self._chain.extend(known.hashes, encoded, known.end, left)
        except ValueError:
            return None
        fields = _decode(frame, start, encode_header(0), start.offset + end)
        if fields is None:
            return None
        hashes = [*known.hashes, *new]
        read = KnownPrefix(hashes, ends[-1] if ends else known.end, end)
        tokens = TokenSequence(start.tokens, encoded[:end], start.salt, read)
        if new:
            self._memory.remember(tokens, hashes, ends, known.end)
        return with_tokens(fields, tokens)

    def _start(self, frame: memoryview) -> _Start | None:
        head = find_head(frame)
        fields = None if head is None else self._heads.get(head)
        if head is None or fields is None:
            return None
        try:
            count, header = array_header(frame[len(head) :])
        except ProtocolError:
            return None
        salt = guess_salt(frame, fields)
        if salt is None:
            return None
        offset = len(head) + header
        known = self._memory.find(salt, frame[offset:], count // self._chain.chunk_tokens)
        return _Start(head, offset, count, salt, known)


def _decode(frame: memoryview, start: _Start, header: bytes, begin: int) -> Any:
    """The fields of the key without the known tokens: the head, an array of those that are left, and what begins there.
    None when it cannot be read, when it is another tenant's, has hashes or their name, or when tokens may be named twice."""
    short = b"".join((start.head, header, frame[begin:]))
    if names_tokens(short, len(start.head)):
        return None
    try:
        fields = decode_fields(short)
    except (ValueError, RecursionError):
        return None
    refused = fields.chunk_hashes is not None or EXTERNAL_NAME.search(fields.model_name)
    return None if refused or fields.cache_salt != start.salt else fields


class PromptHasher:
    """Implements `contracts.request_module.ChunkHasher`: only what the memory does not know is decoded and hashed.

    Safe from any thread."""

    def __init__(self, chain: Chain, memory: PromptMemory) -> None:
        self._chain = chain
        self._memory = memory

    def chunk_hashes(self, token_ids: TokenIds | msgspec.Raw, end: int) -> Sequence[bytes]:
        if isinstance(token_ids, TokenSequence):
            tokens = token_ids
            chunks, known = tokens.count // self._chain.chunk_tokens, tokens.known
            if known is None:
                known = self._memory.find(tokens.cache_salt, tokens.encoded, chunks)
            is_known = known.same >= len(tokens.encoded) and len(known.hashes) == chunks
            hashes = known.hashes if is_known else self._hash_rest(tokens, known)
        else:
            raw = token_ids if isinstance(token_ids, msgspec.Raw) else encode_tokens(token_ids.decode())
            tokens = TokenSequence.of(raw)
            hashes, _ = self._read(tokens, NOTHING_KNOWN)
        if not 0 <= end <= tokens.count:
            raise ProtocolError(f"end is {end}, but there are {tokens.count} token_ids")
        return hashes[: end // self._chain.chunk_tokens]

    def listen(self, function: Callable[[ReadTokens], None]) -> Callable[[], None]:
        return self._memory.listen(function)

    def _hash_rest(self, tokens: TokenSequence, known: KnownPrefix) -> Sequence[bytes]:
        """Hashes of all whole chunks of a tenant's prompt, which is remembered."""
        new, ends = self._read(tokens, known)
        if not new:
            return known.hashes
        hashes = [*known.hashes, *new]
        self._memory.remember(tokens, hashes, ends, known.end)
        return hashes

    def _read(self, tokens: TokenSequence, known: KnownPrefix) -> tuple[list[bytes], list[int]]:
        """Hashes and ends of the chunks that are not known."""
        left = tokens.count - len(known.hashes) * self._chain.chunk_tokens
        try:
            hashes, ends, _ = self._chain.extend(known.hashes, tokens.encoded, known.end, left)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            if known.hashes:
                return self._read(tokens, NOTHING_KNOWN)  # so that the error names the place from the first token on
            raise ProtocolError(f"token_ids: {error}") from None
        return hashes, ends


def open_chain(kind: HashChain, chunk_tokens: int, seed: str, kernels: Kernels) -> Chain:
    """The seed is for sha256_cbor, the kernels are for blake3."""
    if kind is HashChain.BLAKE3:
        return Blake3Chain(chunk_tokens, kernels.read_prompt, kernels.native)
    return Sha256CborChain(chunk_tokens, seed)
