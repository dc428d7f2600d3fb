"""Ask one engine the same prompts in each way to compute them, and count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final, Protocol

from benchmarks.blend_quality.prompts import LENGTH, Prompt
from benchmarks.blend_quality.selectors import FULL, Row
from benchmarks.peer import BenchmarkError
from demo.answer import Answer

QUESTION_TOKENS: Final = 3
"""What no document holds: the first token of the prompt and the two of the question."""
BLEND: Final = "lmcache.blend"
SELECTOR: Final = "lmcache.blend_selector"
RATIOS: Final = "lmcache.blend_recompute_ratios"
FIGURES: Final = ("right_within", "right_across", "agrees", "computed_tokens", "first_token_ms")


class Engine(Protocol):
    """What is needed of `demo.engine_process.EngineProcess`."""

    def ask_together(self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8) -> list[Answer]: ...

    def ask_with(
        self, prompt: Sequence[int], kv_transfer_params: Mapping[str, Any], *, max_tokens: int = 8
    ) -> Answer: ...


@dataclass
class Score:
    """One row's outcomes, one entry for each prompt."""

    right_within: list[bool] = field(default_factory=list)
    right_across: list[bool] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """By FIGURES: shares of the prompts, tokens on average, and the median time."""
        shares = mean(self.right_within), mean(self.right_across), mean(self.agrees)
        values = (*shares, mean(self.computed), 1000 * median(self.seconds))
        return dict(zip(FIGURES, values, strict=True))


def run(
    engine: Engine, prompts: Iterable[Prompt], asked: Sequence[Row], wait_indexed: Callable[[int], None]
) -> dict[str, Score]:
    """Store each prompt's documents, and ask its question in each way; an answer that did not go that way is an error.

    `wait_indexed` returns when this number of chunks has been indexed since the start.
    """
    scores = {row.name: Score() for row in asked}
    chunks = 0
    for prompt in prompts:
        engine.ask_together(prompt.stored, max_tokens=1)
        chunks += sum(len(stored) // LENGTH for stored in prompt.stored)
        wait_indexed(chunks)
        answers = {row.name: ask(engine, prompt, row) for row in asked}
        reference = answers[FULL][0].output[0]
        for name, (answer, computed) in answers.items():
            score, said = scores[name], answer.output[0]
            right = score.right_across if prompt.question.across else score.right_within
            right.append(said == prompt.question.value)
            score.agrees.append(said == reference)
            score.computed.append(computed)
            score.seconds.append(answer.seconds_to_first_token)
        chunks += len(prompt.tokens) // LENGTH  # of the row that computes everything
    return scores


def ask(engine: Engine, prompt: Prompt, row: Row) -> tuple[Answer, int]:
    """Return the answer and how many of the prompt's tokens were computed for it."""
    if not row.selector:
        answer = engine.ask_with(prompt.tokens, {BLEND: False}, max_tokens=1)
        if answer.cached_tokens:
            raise BenchmarkError(f"{row.name}: {answer.cached_tokens} tokens came from the cache")
        return answer, len(prompt.tokens)
    params = {BLEND: True, SELECTOR: row.selector, RATIOS: [row.ratio]}
    answer = engine.ask_with(prompt.tokens, params, max_tokens=1)
    blend = (answer.kv_transfer_params or {}).get(BLEND, {})
    documents = len(prompt.tokens) - QUESTION_TOKENS
    if blend.get("reused_tokens", 0) + blend.get("recomputed_tokens", 0) != documents:
        raise BenchmarkError(f"{row.name}: not all of {documents} tokens were blended: {blend}")
    return answer, len(prompt.tokens) - int(blend["reused_tokens"])
