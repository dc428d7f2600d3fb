"""What the scheduler side remembers of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmcache_vllm.lookup import Lookup
from lmcache_vllm.metadata import BlendResult
from lmcache_vllm.prompt_identity import PromptIdentity
from lmcache_vllm.request_facts import RequestFacts
from lmcache_vllm.server_port import Server


@dataclass(slots=True)
class RequestState:
    """From a request's arrival to its end. Only vLLM's thread touches it."""

    facts: RequestFacts
    lookup: Lookup | None = None
    asked_at: float | None = None
    """When vLLM first wanted to know what was found; None until then."""
    may_look_up: bool = True
    handoff_over: bool = False
    """The hand-off that it takes was waited for."""
    computed: int = 0
    """Tokens that vLLM had itself when it got the hits."""
    allocated: bool = False
    """vLLM gave it blocks; if it asks again, it took them back."""
    ran: bool = False
    """It was part of a step since then."""
    loading: bool = False
    """Workers load for it, and vLLM waits for them."""
    stores: set[int] = field(default_factory=set)
    """Transfers that may still read its blocks."""
    stored: int = 0
    """Chunks, and perhaps a tail, before this token are on the server, or on their way there."""
    server: Server | None = None
    """The one that `stored` and the identity are about."""
    known_to_server: bool = False
    """Something was sent under its name, to be ended with it."""
    may_blend: bool = True
    """No blend of it has failed."""
    blend_end: int = 0
    """Where a blend ends that vLLM was promised when it last asked; 0: none was."""
    tainted_from: int | None = None
    """From this token on its KV may be approximate, and is not stored as if it were exact; None: all of it is exact."""
    kept: int = 0
    """Approximate chunks before this token are on the server, or on their way there."""
    segments: tuple[range, ...] | None = None
    """Documents of its prompt; None: it was not cut yet."""
    segments_done: int = 0
    """How many of them were stored, or need not be."""
    blended: BlendResult | None = None
    """Of the last blend that went well."""
    kept_tokens: int = 0
    """That this blend loaded as an earlier turn has left them."""
    unblended: str = ""
    """Why it was not blended when that was last decided, in a word for counters."""
    _identity: PromptIdentity | None = None

    def begin_again(self) -> None:
        """vLLM took the blocks back: the request was preempted, or nothing of its load is of use."""
        if not self.ran:  # a second lookup would only find what could not be loaded
            self.may_look_up = False
        self.allocated = self.ran = False
        self.asked_at = None
        self.lookup = None
        self.stored = self.kept = self.segments_done = 0
        self.tainted_from = None

    def use_server(self, server: Server) -> None:
        """Turn to the server that is there now."""
        before, self.server = self.server, server
        if before is not None and before is not server:
            self.kept = self.segments_done = 0
            if before.chunk_tokens != server.chunk_tokens:
                self._identity = None
            if self.stored < self.facts.prompt_tokens // server.chunk_tokens * server.chunk_tokens:
                self.stored = 0  # while the prompt is computed, a new server gets all of it
        if self._identity is None:
            facts = self.facts
            self._identity = PromptIdentity(facts.tokens, server.chunk_tokens, facts.placeholders, facts.adapter)

    @property
    def variant(self) -> str:
        """Of the model name of its keys, on the server that was turned to."""
        assert self._identity is not None, "use_server comes first"
        return self._identity.variant

    def tail_end(self, end: int, block_tokens: int) -> int:
        """As `PromptIdentity.tail_end`, on the server that was turned to."""
        assert self._identity is not None, "use_server comes first"
        return self._identity.tail_end(end, block_tokens)

    def encoded_tokens(self, end: int) -> bytes:
        """The first `end` token ids as they stand in a key of the server that was turned to, padded to whole chunks."""
        assert self._identity is not None, "use_server comes first"
        self.known_to_server = True
        return self._identity.encoded(end)

    def encoded_unpadded(self, end: int) -> bytes:
        """The first `end` token ids, not padded."""
        assert self._identity is not None, "use_server comes first"
        self.known_to_server = True
        return self._identity.encoded_unpadded(end)
