"""Conversations over four servers, each turn sent where `/query` says: nearly as good as one server with all of the memory."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.fleet.test_two_servers import wait_for

CHUNK_TOKENS: Final = 16
SERVERS: Final = 4
CONVERSATIONS: Final = 200
ACTIVE: Final = 40
"""At a time."""
TURNS: Final = 6
TURN_TOKENS: Final = 8 * CHUNK_TOKENS
MEMORY_GB: Final = 0.12
"""Of all servers together: a third of what all conversations take, and twice as much as those that are active."""
POINTS: Final = 2.0


class Turn(NamedTuple):
    conversation: int
    prompt: list[int]


def turns() -> Iterator[Turn]:
    """In the same order each time: the active conversations take turns by chance.  A person reads before the next question."""
    chooser, waiting = random.Random(5), iter(range(CONVERSATIONS))
    reading: deque[int] = deque(maxlen=ACTIVE // 4)
    active = dict.fromkeys(itertools.islice(waiting, ACTIVE), 0)
    while active:
        number = chooser.choice([each for each in active if each not in reading] or list(active))
        reading.append(number)
        active[number] += 1
        yield Turn(number, [number + 1, *range(1, active[number] * TURN_TOKENS)])
        if active[number] == TURNS:
            del active[number]
            active.update(dict.fromkeys(itertools.islice(waiting, 1), 0))


def hit_percent(servers: Sequence[ServerProcess], choose: Callable[[Turn], int]) -> float:
    """Of the tokens of all prompts.  `choose` says which server gets a turn."""
    hit = asked = 0
    with ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(f"tcp://127.0.0.1:{server.port}", hidden=256)) for server in servers]
        for turn in turns():
            engine = engines[choose(turn)]
            hit += engine.lookup(turn.prompt) * CHUNK_TOKENS
            engine.end()
            engine.store(turn.prompt)
            asked += len(turn.prompt)
    return 100 * hit / asked


class Router:
    """Sends a conversation's first turn to the server with the fewest tokens lately, and others where the coordinator says."""

    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self._coordinator = coordinator
        self._latest: deque[tuple[int, int]] = deque(maxlen=2 * ACTIVE)
        """Servers, and tokens that they were sent."""

    def choose(self, turn: Turn) -> int:
        matched = dict.fromkeys(range(SERVERS), 0)
        if len(turn.prompt) > TURN_TOKENS:
            asked = {"model": "model", "token_ids": turn.prompt}
            answer = self._coordinator.ask("POST", "/query", asked).body["default"]
            matched |= {int(name): each["longest_matched"] for name, each in answer.items()}
        load = Counter[int]()
        for server, tokens in self._latest:
            load[server] += tokens
        chosen = max(matched, key=lambda server: (matched[server], -load[server]))
        self._latest.append((chosen, len(turn.prompt)))
        return chosen


def started(folder: Path, stack: ExitStack, count: int, *options: str) -> list[ServerProcess]:
    size = ("--l1-size-gb", str(MEMORY_GB / count), "--chunk-size", str(CHUNK_TOKENS))
    return [
        stack.enter_context(
            ServerProcess([*size, "--instance-id", str(number), *options], folder / f"{count}-{number}.log")
        )
        for number in range(count)
    ]


@pytest.mark.slow
def test_hits_are_those_of_one_server_with_all_memory(tmp_path: Path) -> None:
    with ExitStack() as stack:
        alone = hit_percent(started(tmp_path, stack, 1), lambda turn: 0)
    with ExitStack() as stack:
        numbers = itertools.cycle(range(SERVERS))
        in_turn = hit_percent(started(tmp_path, stack, SERVERS), lambda turn: next(numbers))
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(tmp_path))
        flags = ("--coordinator-url", coordinator.url, "--coordinator-event-flush-interval", "0.05")
        servers = started(tmp_path, stack, SERVERS, *flags)

        def members() -> int:
            return len(coordinator.ask("GET", "/instances").body["instances"])

        wait_for(lambda: members() == SERVERS, members)
        routed = hit_percent(servers, Router(coordinator).choose)
    print(f"hit tokens: one server {alone:.1f} %, routed {routed:.1f} %, round robin {in_turn:.1f} %")
    assert routed > alone - POINTS
    assert in_turn < alone - 10 * POINTS, "it makes no difference where turns are sent: the test shows nothing"
