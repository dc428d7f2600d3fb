"""Patterns in which a prompt is the one before and something new."""

from __future__ import annotations

import random
from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.policy_traces.request_list import Request, RequestList, fresh_blocks, one_each_second


@dataclass(frozen=True, slots=True)
class Chat:
    """Conversations begin at random moments; each goes on with some probability after a time to think."""

    first_blocks: tuple[int, int] = (2, 20)
    turn_blocks: tuple[int, int] = (1, 3)
    goes_on: float = 0.5
    think_seconds: float = 100.0
    think_varies: bool = True
    starts_per_second: float = 1.0
    systems: int = 1
    system_blocks: int = 0
    partial_last: bool = False
    """Is there a last block that the next turn does not have, because it was cut at the end of the prompt?"""

    def requests(self, seed: int, asked: int = 120_000) -> RequestList:
        rng, fresh = random.Random(seed), fresh_blocks()
        due: list[tuple[float, int, list[int]]] = []
        requests: RequestList = []
        begins = 0.0
        while asked > 0:
            if due and due[0][0] <= begins:
                now, _, prompt = heappop(due)
            else:
                now = begins
                begins += rng.expovariate(self.starts_per_second)
                system = rng.randrange(self.systems) * 1_000
                prompt = [*range(system, system + self.system_blocks), *fresh(rng.randint(*self.first_blocks))]
            requests.append(Request(now, prompt + fresh(self.partial_last)))
            asked -= len(requests[-1].blocks)
            if rng.random() < self.goes_on:
                longer = prompt + fresh(rng.randint(*self.turn_blocks))
                think = rng.expovariate(1 / self.think_seconds) if self.think_varies else self.think_seconds
                heappush(due, (now + think, len(requests), longer))
        return requests


def agents(seed: int, asked: int = 120_000, at_once: int = 30) -> RequestList:
    """Agents take 5 to 60 steps in quick succession, each of which adds one or two blocks."""
    rng, fresh = random.Random(seed), fresh_blocks()
    live: list[tuple[list[int], int]] = []
    prompts: list[list[int]] = []
    while asked > 0:
        while len(live) < at_once:
            live.append((list(range(8)) + fresh(4), rng.randint(5, 60)))
        place = rng.randrange(len(live))
        prompt, steps = live[place]
        prompts.append(prompt)
        asked -= len(prompt)
        live[place] = (prompt + fresh(rng.randint(1, 2)), steps - 1)
        if steps == 1:
            del live[place]
    return one_each_second(prompts)
