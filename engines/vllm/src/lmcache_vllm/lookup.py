"""One lookup, from the question to the answer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from lmcache_client import EngineKey, LMCacheError
from lmcache_client.blend import BlendAnswer, BlendSegment
from lmcache_vllm.metadata import SegmentChain
from lmcache_vllm.segments import ChainQuestion, with_chains
from lmcache_vllm.server_port import Question, Server

FRESH_SECONDS: Final = 1.0
"""Seconds until a lookup that did not find everything is asked again: others have stored since."""
HELD_SECONDS: Final = 60.0
"""One that found everything is asked again as well: what it found is not held for ever."""


class Lookup:
    """A question that was sent. Its answer comes on another thread, and is taken on vLLM's."""

    __slots__ = (
        "_answered_at",
        "_asked_at",
        "_chains",
        "_clock",
        "_hit_tokens",
        "_kept",
        "_question",
        "asks_segments",
        "chains",
        "end",
        "kept",
        "key",
        "segments",
        "sent_at",
        "server",
    )

    def __init__(
        self,
        key: EngineKey,
        end: int,
        server: Server,
        question: Question,
        clock: Callable[[], float],
        asks_segments: bool = False,
        kept: Question | None = None,
        chains: Sequence[ChainQuestion] = (),
    ) -> None:
        """`end`: of the tokens that are asked for. The key's is that of their last chunk. `asks_segments`: for what is
        behind the prefix, too; then both are the same. `kept`: the same question for what an earlier turn has left.
        `chains`: questions for the documents of the prompt."""
        self.key = key
        self.end = end
        self.server = server
        self.asks_segments = asks_segments
        self.segments: tuple[BlendSegment, ...] = ()
        self.kept: frozenset[int] = frozenset()
        """Where those of the segments begin that an earlier turn has left."""
        self.chains: tuple[SegmentChain, ...] = ()
        """Of the segments that are chunks of documents."""
        self.sent_at = clock()
        self._chains = chains
        self._question, self._kept = question, kept
        self._clock = clock
        self._answered_at = self.sent_at
        self._asked_at: float | None = self.sent_at
        if question.handoff_over is not None:
            self._asked_at = None
            question.handoff_over.add_done_callback(lambda _: self._stamp_asked(clock))
        self._hit_tokens: int | None = None
        question.chunks.add_done_callback(lambda _: self._stamp(clock))

    def _stamp(self, clock: Callable[[], float]) -> None:
        self._answered_at = clock()

    def _stamp_asked(self, clock: Callable[[], float]) -> None:
        self._asked_at = clock()

    def waited(self, now: float, since: float) -> float:
        """Seconds that the server was waited for, at most from `since` on: none while a hand-off is."""
        return 0.0 if self._asked_at is None else now - max(self._asked_at, since)

    @property
    def hit_tokens(self) -> int | None:
        """None until the answer was taken."""
        return self._hit_tokens

    @property
    def is_accepted(self) -> bool:
        """Whether the server has said that it has the question."""
        accepted = self._question.accepted
        return accepted.done() and accepted.exception() is None

    @property
    def seconds(self) -> float:
        """From the question to the answer."""
        return self._answered_at - self.sent_at

    def take(self, patience: float) -> int | None:
        """The tokens that were found; None if there is no answer `patience` seconds from now. Raises LMCacheError where
        none can be expected any more, and for one that makes no sense."""
        until = self._clock() + patience
        try:
            chunks = self._question.chunks.result(max(0.0, patience))
            kept = self._kept.chunks.result(max(0.0, until - self._clock())) if self._kept else None
            hits = [each.question.chunks.result(max(0.0, until - self._clock())) for each in self._chains]
        except TimeoutError:
            return None
        if chunks is None:
            raise LMCacheError("the server did not finish it")
        if isinstance(chunks, BlendAnswer):
            self._take_answer(chunks, kept if isinstance(kept, BlendAnswer) else BlendAnswer())
            self._take_chains([each if isinstance(each, int) else 0 for each in hits])
            return chunks.prefix_tokens
        asked = self.key.end // self.server.chunk_tokens
        if not 0 <= chunks <= asked:
            raise LMCacheError(f"the server found {chunks} chunks of {asked}")
        self._hit_tokens = min(chunks * self.server.chunk_tokens, self.end)
        return self._hit_tokens

    def _take_answer(self, answer: BlendAnswer, kept: BlendAnswer) -> None:
        self._check(answer)
        self._check(kept)
        left = _left(answer, kept, self.server.chunk_tokens)
        self.kept = frozenset(segment.start for segment in left)
        self.segments = _joined(answer.segments, left)
        self._hit_tokens = answer.prefix_tokens

    def _take_chains(self, hits: Sequence[int]) -> None:
        """`hits`: chunks that were found of each."""
        chains = [(each.transfer, found) for each, found in zip(self._chains, hits, strict=True)]
        self.segments, self.chains = with_chains(self.segments, self._hit_tokens or 0, chains)

    def _check(self, answer: BlendAnswer) -> None:
        prefix, chunk = answer.prefix_tokens, self.server.chunk_tokens
        if not 0 <= prefix <= self.key.end or prefix % chunk:
            raise LMCacheError(f"the server found a prefix of {prefix} tokens of {self.key.end}, in chunks of {chunk}")
        behind = prefix
        for segment in answer.segments:
            tokens = segment.end - segment.start
            fits = behind <= segment.start < segment.end <= self.key.end and tokens <= chunk
            if not fits or segment.old_start < 0 or segment.old_end - segment.old_start != tokens:
                raise LMCacheError(f"the server found a segment that does not fit: {segment}, behind token {behind}")
            behind = segment.end

    def is_stale(self, now: float) -> bool:
        """Whether the answer that was taken is too old to be relied on."""
        if self._hit_tokens is None:
            return False
        most = self.end // self.server.chunk_tokens * self.server.chunk_tokens if self.asks_segments else self.end
        found = self.segments or self._hit_tokens == most
        return now - self._answered_at > (HELD_SECONDS if found else FRESH_SECONDS)


def _left(answer: BlendAnswer, kept: BlendAnswer, chunk_tokens: int) -> list[BlendSegment]:
    """What an earlier turn has left of this prompt, where nothing exact is there. Its other segments are of other prompts."""
    exact = {segment.start for segment in answer.segments if segment.exact}
    own = [segment for segment in kept.segments if segment.exact and segment.start % chunk_tokens == 0]
    return [segment for segment in own if segment.start >= answer.prefix_tokens and segment.start not in exact]


def _joined(segments: tuple[BlendSegment, ...], left: list[BlendSegment]) -> tuple[BlendSegment, ...]:
    """Both, in order; those that are moved only where nothing was left."""
    if not left:
        return segments
    places = [(segment.start, segment.end) for segment in left]

    def is_free(segment: BlendSegment) -> bool:
        at = bisect_right(places, (segment.start, segment.end))
        before_ends = places[at - 1][1] if at else 0
        behind_starts = places[at][0] if at < len(places) else segment.end
        return before_ends <= segment.start and segment.end <= behind_starts

    found = [*left, *(segment for segment in segments if is_free(segment))]
    return tuple(sorted(found, key=lambda segment: segment.start))
