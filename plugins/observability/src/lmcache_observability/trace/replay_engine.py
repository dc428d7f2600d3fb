"""An engine without a model: chunks whose right bytes follow from their hash, the model and the salt."""

from __future__ import annotations

import mmap
import secrets
import struct
from collections.abc import Sequence
from hashlib import shake_128
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from lmcache_core import ConfigError, EngineClient, EngineDrivenRegistration, EngineKey, ResourceError, encode_tokens

_SHARED_MEMORY: Final = Path("/dev/shm")
_WORDS: Final = 8
"""Tokens of a chunk that say which one it is: 32 bytes of hash."""


class Prompt(NamedTuple):
    request: str
    model: str
    salt: str
    hashes: Sequence[bytes]


class ReplayEngine:
    """The scheduler and the workers of one engine for each model.  One thread.  Raises LMCacheError."""

    def __init__(self, endpoint: str, chunk_tokens: int, chunk_bytes: dict[str, int]) -> None:
        self._client = EngineClient(endpoint)
        self._instances: dict[str, int] = {}
        self._segment: mmap.mmap | None = None
        self._chunk_tokens = chunk_tokens
        try:
            if (own := self._client.get_chunk_size()) != chunk_tokens:
                raise ConfigError(
                    f"the recording has chunks of {chunk_tokens} tokens, the server of {own}; "
                    f"start it with --chunk-size {chunk_tokens}"
                )
            self._sizes = {model: self._register(model, size) for model, size in chunk_bytes.items()}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The server notices by itself that the workers are gone."""
        self._client.close()
        if self._segment is not None:
            self._segment.close()

    def look_up(self, prompt: Prompt) -> int:
        """Chunks that are hit."""
        return self._client.lookup_hits(self._key(prompt, 0, len(prompt.hashes), None))

    def retrieve(self, prompt: Prompt, chunks: int) -> int:
        """Read the first chunks.  Returns how many of them hold other bytes than they should."""
        key, instance = self._key(prompt, 0, chunks, 0), self._instances[prompt.model]
        reply = self._client.prepare_retrieve(key, instance)
        slots = self._slots(reply.context.slots) if reply.success else []
        wrong = sum(self._read(slot) != self._content(prompt, index) for index, slot in enumerate(slots))
        self._client.commit_retrieve(key, instance)
        return wrong

    def store(self, prompt: Prompt, first: int, end: int) -> int:
        """Write the chunks that are not there.  Returns how many were written."""
        key, instance = self._key(prompt, first, end, 0), self._instances[prompt.model]
        context = self._client.prepare_store(key, instance).context
        slots = self._slots(context.slots)
        if not slots:
            return 0
        for slot, index in zip(slots, self._slots(context.chunk_indices), strict=True):
            self._write(slot, self._content(prompt, first + index))
        return len(slots) if self._client.commit_store(key, instance) else 0

    def end(self, request: str) -> None:
        self._client.end_session(request)

    def _register(self, model: str, chunk_bytes: int) -> int:
        """Returns the size of its chunks, rounded up to whole tokens."""
        instance = self._instances[model] = secrets.randbits(62)
        hidden = -(-chunk_bytes // self._chunk_tokens)
        about = (model, 1, self._chunk_tokens, 1, hidden, "uint8", True)
        offer = self._client.register_engine_driven(EngineDrivenRegistration(instance, *about))
        if not offer.shm_name:
            raise ResourceError("the server offers no shared memory, without which a replay cannot look at the bytes")
        if self._segment is None:
            try:
                with (_SHARED_MEMORY / offer.shm_name).open("r+b") as file:
                    self._segment = mmap.mmap(file.fileno(), 0)
            except OSError as error:
                raise ResourceError(
                    f"the server's memory {_SHARED_MEMORY / offer.shm_name} cannot be mapped ({error.strerror}); "
                    "a replay runs on the server's machine, as its user"
                ) from None
        return hidden * self._chunk_tokens

    def _key(self, prompt: Prompt, first: int, end: int, worker: int | None) -> EngineKey:
        size = self._chunk_tokens
        tokens = encode_tokens(token for each in prompt.hashes[:end] for token in chunk_tokens(each, size))
        extent = (first * size, end * size)
        return EngineKey(prompt.model, 1, worker, tokens, *extent, prompt.request, prompt.salt, None, 1)

    def _slots(self, slots: Any) -> Sequence[Any]:
        """Unset where chunks travel in messages, which a registered worker with shared memory is never asked for."""
        return slots if isinstance(slots, tuple) else ()

    def _content(self, prompt: Prompt, index: int) -> bytes:
        identity = f"{prompt.model}\0{prompt.salt}\0".encode() + prompt.hashes[index]
        return shake_128(identity).digest(self._sizes[prompt.model])

    def _read(self, slot: Any) -> bytes:
        assert self._segment is not None
        return self._segment[slot.offset : slot.offset + slot.length]

    def _write(self, slot: Any, data: bytes) -> None:
        assert self._segment is not None
        self._segment[slot.offset : slot.offset + slot.length] = data


def chunk_tokens(chunk_hash: bytes, count: int) -> list[int]:
    """Tokens of a chunk: different for different hashes, as far as `count` leaves room for it."""
    words = struct.unpack(f"<{_WORDS}I", chunk_hash)
    return [word & 0x7FFFFFFF for word in words[:count]] + [0] * (count - _WORDS)
