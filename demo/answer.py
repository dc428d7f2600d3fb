"""What an engine answered to one prompt, and whether two answers are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 0.002
"""Log probabilities of the first token, in float32, move less than this by rounding; one changed token of the context
moves them by 0.015 and more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request.  `first` holds the first token's likeliest (token, log probability) pairs."""

    prompt_tokens: int
    cached_tokens: int
    seconds_to_first_token: float
    output: tuple[int, ...]
    first: tuple[tuple[int, float], ...]
    kv_transfer_params: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the engine hands over, where its connector does."""

    def drift(self, other: Answer) -> float:
        """The largest difference of a log probability of the first token.

        Near the end of the list a token may be in one answer only; then the other's last entry is used.
        """
        mine, theirs = dict(self.first), dict(other.first)
        mine_last, theirs_last = min(mine.values()), min(theirs.values())
        tokens = mine.keys() | theirs.keys()
        return max(abs(mine.get(token, mine_last) - theirs.get(token, theirs_last)) for token in tokens)

    def says_the_same_as(self, other: Answer) -> bool:
        """Same tokens, and log probabilities equal up to rounding.  Says nothing of how the context was computed."""
        return (
            self.prompt_tokens == other.prompt_tokens and self.output == other.output and self.drift(other) <= TOLERANCE
        )
