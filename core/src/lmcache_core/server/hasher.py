"""Chunk hashes: the chains of the engine protocol (docs/engine-protocol.md, "Chunk hashes"), and a memory of them per request.

A chain covers the tokens from the first one on, so that equal prefixes, and only they, have equal hashes.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import cbor2
import msgspec
from blake3 import blake3

from lmcache_core.contracts.clock import Clock
from lmcache_core.model.errors import ProtocolError
from lmcache_core.model.keys import HashChain
from lmcache_core.wire.tokens import TOKEN_BYTES, TokenRun

MAX_TOKENS = 16 << 20
"""Longest sequence that is taken from an engine."""
SESSION_BYTES_MAX = 128 << 20
"""Tokens and hashes remembered for all requests together; the longest unused are forgotten first."""

_NO_TOKENS = TokenRun(b"", b"")


class Chain:
    """Hash chain over chunks of `chunk_tokens` tokens, each 4 bytes, big-endian."""

    def __init__(self, kind: HashChain, chunk_tokens: int, seed: str) -> None:
        self.kind = kind
        self.chunk_bytes = chunk_tokens * TOKEN_BYTES
        if kind is HashChain.BLAKE3:
            self._root = blake3(bytes(8) + bytes(TOKEN_BYTES)).digest()
        else:
            self._root = hashlib.sha256(cbor2.dumps(seed, canonical=True)).digest()

    def extend(self, known: Sequence[bytes], tokens: bytes, chunks: int) -> list[bytes]:
        """Hashes of the first `chunks` chunks of `tokens`, of which the first ones are known."""
        hashes = list(known[:chunks])
        previous = hashes[-1] if hashes else self._root
        view = memoryview(tokens)
        link = self._blake3 if self.kind is HashChain.BLAKE3 else self._sha256_cbor
        for at in range(len(hashes) * self.chunk_bytes, chunks * self.chunk_bytes, self.chunk_bytes):
            previous = link(previous, view[at : at + self.chunk_bytes])
            hashes.append(previous)
        return hashes

    @staticmethod
    def _blake3(previous: bytes, chunk: memoryview) -> bytes:
        return blake3(previous + chunk).digest()

    @staticmethod
    def _sha256_cbor(previous: bytes, chunk: memoryview) -> bytes:
        words = array("I", chunk.tobytes())
        words.byteswap()
        return hashlib.sha256(cbor2.dumps([previous, words.tolist(), None], canonical=True)).digest()


@dataclass(slots=True, eq=False)
class _Session:
    request_id: str
    run: TokenRun
    hashes: list[bytes]
    used: float

    @property
    def size_bytes(self) -> int:
        """About what it takes, the objects around it included."""
        return 512 + len(self.request_id) + len(self.run.tokens) + len(self.run.encoded) + 100 * len(self.hashes)


class SessionHasher:
    """Implements `contracts.request_module.ChunkHasher`.

    What is remembered under a request id is used only as far as the tokens are the same, byte for byte: ids are chosen by
    engines, and two engines may choose the same.  Safe from any thread."""

    def __init__(self, chain: Chain, ttl_seconds: float, clock: Clock) -> None:
        self._chain = chain
        self._ttl = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def chunk_hashes(self, request_id: str, token_ids: bytes | memoryview | msgspec.Raw, end: int) -> Sequence[bytes]:
        with self._lock:
            session = self._sessions.get(request_id)
            old_run, old_hashes = (session.run, session.hashes) if session else (_NO_TOKENS, [])
        run = old_run.follow(msgspec.Raw(token_ids) if isinstance(token_ids, memoryview) else token_ids, MAX_TOKENS)
        if not 0 <= end <= run.count:
            raise ProtocolError(f"end is {end}, but there are {run.count} token_ids")
        chunks = end * TOKEN_BYTES // self._chain.chunk_bytes
        same = run is old_run or run.tokens.startswith(old_run.tokens)
        known = old_hashes if same else old_hashes[: self._common_chunks(old_run.tokens, run.tokens)]
        hashes = known if same and len(known) >= chunks else self._chain.extend(known, run.tokens, chunks)
        self._remember(request_id, run, hashes if len(hashes) >= len(known) else known)
        return hashes[:chunks]

    def end_session(self, request_id: str) -> None:
        with self._lock:
            self._forget(request_id)

    def expire(self) -> None:
        """Forget requests that have not been seen for the time to live."""
        oldest = self._clock.monotonic() - self._ttl
        with self._lock:
            while self._sessions and next(iter(self._sessions.values())).used < oldest:
                self._forget(next(iter(self._sessions)))

    def _common_chunks(self, old: bytes, new: bytes) -> int:
        size = self._chain.chunk_bytes
        for chunk in range(min(len(old), len(new)) // size):
            if old[chunk * size : (chunk + 1) * size] != new[chunk * size : (chunk + 1) * size]:
                return chunk
        return min(len(old), len(new)) // size

    def _remember(self, request_id: str, run: TokenRun, hashes: list[bytes]) -> None:
        session = _Session(request_id, run, hashes, self._clock.monotonic())
        with self._lock:
            self._forget(request_id)
            self._sessions[request_id] = session
            self._bytes += session.size_bytes
            while self._bytes > SESSION_BYTES_MAX and len(self._sessions) > 1:
                self._forget(next(iter(self._sessions)))

    def _forget(self, request_id: str) -> None:
        session = self._sessions.pop(request_id, None)
        if session is not None:
            self._bytes -= session.size_bytes
