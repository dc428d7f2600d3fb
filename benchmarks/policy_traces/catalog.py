"""The patterns by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.policy_traces import conversations, popularity, sequences
from benchmarks.policy_traces.conversations import Chat
from benchmarks.policy_traces.request_list import RequestList


def phases(seed: int) -> RequestList:
    """Chat, popular prompts, a loop, chat of another kind, and other popular prompts."""
    return sequences.one_after_another(
        [
            Chat().requests(seed, 40_000),
            popularity.popular(seed, 0.9, 6_000, 30_000),
            sequences.loop(3_000, 10),
            Chat(turn_blocks=(4, 8), goes_on=0.3).requests(seed + 1, 40_000),
            popularity.popular(seed + 1, 0.7, 6_000, 30_000),
        ]
    )


PATTERNS: Final[Mapping[str, Callable[[int], RequestList]]] = MappingProxyType(
    {
        "scan": lambda seed: sequences.scan(),
        "scan, 10 blocks": lambda seed: sequences.scan(prompt=10),
        "loop": lambda seed: sequences.loop(),
        "loop, 10 blocks": lambda seed: sequences.loop(prompt=10),
        "loops of 4 lengths": lambda seed: sequences.loops(),
        "zipf 0.6": lambda seed: popularity.popular(seed, 0.6),
        "zipf 0.8": lambda seed: popularity.popular(seed, 0.8),
        "zipf 1.0": lambda seed: popularity.popular(seed, 1.0),
        "zipf 1.2": lambda seed: popularity.popular(seed, 1.2),
        "zipf 0.7, 8 blocks": lambda seed: popularity.popular(seed, 0.7, 40_000, 200_000, 8),
        "zipf 1.0, 8 blocks": lambda seed: popularity.popular(seed, 1.0, 40_000, 200_000, 8),
        "zipf 0.8, many sizes": popularity.popular_of_many_sizes,
        "zipf and scans": lambda seed: popularity.popular_and_scans(seed, 0.5),
        "zipf and long scans": lambda seed: popularity.popular_and_scans(seed, 0.3, 1_000),
        "zipf that shifts": popularity.popular_for_a_while,
        "zipf that shifts, 5": lambda seed: popularity.popular_for_a_while(seed, 3_000, prompt=5),
        "working sets": sequences.working_sets,
        "drift": sequences.drift,
        "recency": sequences.recency,
        "random walk": sequences.random_walk,
        "chat": Chat().requests,
        "chat, long": Chat(goes_on=0.85, turn_blocks=(2, 6)).requests,
        "chat, short": Chat(goes_on=0.25, first_blocks=(1, 40)).requests,
        "chat with systems": Chat(systems=3, system_blocks=6, partial_last=True).requests,
        "chat, fixed think": Chat(think_varies=False).requests,
        "chat, quick": Chat(think_seconds=5.0, starts_per_second=0.3).requests,
        "system prompts": popularity.system_prompts,
        "system, long tails": lambda seed: popularity.system_prompts(seed, 200, 4, 16),
        "documents": popularity.documents,
        "agents": conversations.agents,
        "phases": phases,
    }
)
"""Each gives the requests of a seed; those without chance in them are the same for every seed."""
