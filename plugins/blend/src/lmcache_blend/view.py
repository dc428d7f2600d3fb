"""The coordinator's view `blend`: chunks of all members by their tokens.

Members send which tokens a chunk has once, when they have stored it.  Whether it is still there, and where, the directory
of keys knows, so that nothing of a member has to be forgotten here.
"""

from __future__ import annotations

import binascii
import threading
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from lmcache_blend.settings import CHUNK_SIZE, CHUNKS_MAX, LOOKUP_PATH, TOKENS_MAX
from lmcache_blend_index import ChunkIndex, Match, link
from lmcache_client.errors import ProtocolError
from lmcache_core import HttpAnswer, HttpRefusal, HttpRequest, HttpRoute, KeySpace, PluginSettings, pack_kv_rank
from lmcache_fleet.messages import HASH_BYTES, Page
from lmcache_fleet.tokens import TOKENS, ChunkTokens, tokens_in
from lmcache_fleet.view import CoordinatorView, IsThere, Question

_TOKEN_BYTES: Final = 4


class ViewSettings(PluginSettings):
    chunk_size: int = Field(256, ge=1)
    probe_stride: int = Field(1, ge=1)
    index_chunks: int = Field(1 << 22, ge=16, le=CHUNKS_MAX)


class BlendQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens_b64: str = Field(
        description=f"Token ids, 4 bytes each, little-endian, in base64; the first {TOKENS_MAX} are looked at."
    )
    model_name: str = Field(max_length=1024, description="As in keys.")
    world_size: int = 1
    cache_salt: str = Field("", max_length=256)
    layout: str = Field("", max_length=32, description="Fingerprint of the layout, in hex; empty: any.")


class BlendMatch(BaseModel):
    chunk_hash: str
    old_st: int = Field(description="Where the chunk began in the prompt that it was stored with.")
    cur_st: int = Field(description="Where its tokens are in this prompt.")
    parent_hash: str = Field(description="Of the chunk before it; empty: it was the first one.")


class BlendMatches(BaseModel):
    matches: list[BlendMatch] = Field(description="Of chunks that some server has, by `cur_st`.")


class BlendView(CoordinatorView):
    """Safe from any thread."""

    types: ClassVar[frozenset[str]] = frozenset((TOKENS,))

    def __init__(self, settings: ViewSettings) -> None:
        self._chunk_tokens, self._stride = settings.chunk_size, settings.probe_stride
        self._is_there: IsThere = lambda space, hashes: [True] * (len(hashes) // HASH_BYTES)
        self._lock = threading.Lock()  # guards all below
        self._index = ChunkIndex(settings.chunk_size, settings.index_chunks)
        self._parents = memoryview(mmap(-1, (settings.index_chunks + 1) * HASH_BYTES, MAP_PRIVATE | MAP_ANONYMOUS))
        """By entry; takes memory once it is written."""
        self._spaces: dict[KeySpace, None] = {}
        self._lookups = self._refused = 0

    @property
    def compiled(self) -> bool:
        """Is the index that of lmcache-native?"""
        return self._index.native

    def begin(self, is_there: IsThere) -> None:
        self._is_there = is_there

    def refusal(self, metadata: Mapping[str, Any]) -> str:
        said = metadata.get(CHUNK_SIZE, [])
        if said in ([], [str(self._chunk_tokens)]):
            return ""
        return (
            f"this server blends chunks of {', '.join(map(str, said))} tokens (--chunk-size), and this coordinator's "
            f"--blend-chunk-size is {self._chunk_tokens}; give both the same number"
        )

    def figures(self) -> Mapping[str, int]:
        with self._lock:
            return {
                "num_chunks": len(self._index),
                "num_namespaces": sum(space in self._index for space in self._spaces),
                "table_size": self._index.chunks_max,
                "num_lookups": self._lookups,
                "num_refused_pages": self._refused,
            }

    def take(self, page: Page, skip: int) -> None:
        try:
            for chunk in tokens_in(page, skip, self._chunk_tokens):
                with self._lock:
                    self._add(chunk)
        except ProtocolError:
            with self._lock:
                self._refused += 1

    def forget(self, instance: str) -> None:
        """The directory forgets what it had."""

    def routes(self) -> Sequence[HttpRoute]:
        return [
            Question(
                "POST",
                LOOKUP_PATH,
                self._answer,
                "Chunks of a prompt that some server has, wherever they are in it.",
                body=BlendQuestion,
                answers=BlendMatches,
                refusals={422: "a value is not allowed"},
            )
        ]

    def lookup(
        self, tokens: Sequence[int], model_name: str, kv_rank: int, salt: str, layout: bytes = b""
    ) -> list[tuple[Match, bytes]]:
        """Matches of chunks that some server has, ascending, each with the hash of the chunk before it; empty for the first of
        a prompt.  `layout`: empty for any."""
        found = list[tuple[Match, bytes]]()
        with self._lock:
            self._lookups += 1
            spaces = [
                each
                for each in self._spaces
                if (each.model_name, each.kv_rank, each.cache_salt) == (model_name, kv_rank, salt)
                and layout in (b"", each.layout)
            ]
            by_space = {space: self._index.match(space, tokens, self._stride) for space in spaces}
            parents = {each.entry: self._parent(each) for matches in by_space.values() for each in matches}
        for space, matches in by_space.items():
            there = self._is_there(space, b"".join([each.hash for each in matches]))
            found += [(each, parents[each.entry]) for each, is_there in zip(matches, there, strict=True) if is_there]
        return sorted(found)

    def _answer(self, asked: HttpRequest) -> HttpAnswer:
        question = BlendQuestion.model_validate_json(asked.body)
        tokens = array("I")
        try:
            data = b64decode(question.tokens_b64, validate=True)
            tokens.frombytes(data[: TOKENS_MAX * _TOKEN_BYTES])
            layout = bytes.fromhex(question.layout)
        except (binascii.Error, ValueError) as error:
            raise HttpRefusal(
                422, f"tokens_b64 or layout: {error}; expected tokens of 4 bytes in base64, and hex digits"
            ) from None
        try:
            rank = pack_kv_rank(question.world_size, 0)
        except ProtocolError as error:
            raise HttpRefusal(422, f"world_size: {error}") from None
        found = self.lookup(tokens, question.model_name, rank, question.cache_salt, layout)
        rows = [
            {
                "chunk_hash": match.hash.hex(),
                "old_st": match.place * self._chunk_tokens,
                "cur_st": match.start,
                "parent_hash": parent.hex(),
            }
            for match, parent in found
        ]
        return HttpAnswer({"matches": rows})

    # --- under the lock

    def _add(self, chunk: ChunkTokens) -> None:
        space, tokens = chunk.space, array("I", chunk.tokens)
        if not self._index.add(space, tokens, chunk.chunk_hash, chunk.place, link(chunk.parent)):
            return
        if space not in self._spaces:
            self._spaces = {each: None for each in self._spaces if each in self._index} | {space: None}
        added = self._index.find(space, tokens, chunk.chunk_hash)
        if added is not None:
            at = added.entry * HASH_BYTES
            self._parents[at : at + HASH_BYTES] = chunk.parent or bytes(HASH_BYTES)

    def _parent(self, match: Match) -> bytes:
        """Empty for the first chunk of a prompt."""
        return bytes(self._parents[match.entry * HASH_BYTES : (match.entry + 1) * HASH_BYTES]) if match.place else b""
