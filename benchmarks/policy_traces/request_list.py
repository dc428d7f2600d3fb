"""What a pattern of requests is, and how it becomes a trace for the replay of `lmcache simulate`."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from lmcache_policies.simulate.trace import Trace


class Request(NamedTuple):
    seconds: float
    blocks: list[int]
    """Of the prompt, in order.  A block always follows the same block, as in a prefix cache."""


RequestList = list[Request]


def one_each_second(prompts: Iterable[list[int]]) -> RequestList:
    return [Request(float(second), blocks) for second, blocks in enumerate(prompts)]


def zipf(rng: random.Random, items: int, exponent: float) -> Callable[[], int]:
    """Draws items of which the n-th most popular has a share like n ** -exponent; popularity is in no order."""
    numbers = list(range(items))
    weights = list(accumulate((rank + 1) ** -exponent for rank in numbers))
    rng.shuffle(numbers)
    return lambda: rng.choices(numbers, cum_weights=weights)[0]


def fresh_blocks() -> Callable[[int], list[int]]:
    """Returns this number of blocks that no request has asked for."""
    ids = iter(range(10**9, 2 * 10**9))

    def take(count: int) -> list[int]:
        return [next(ids) for _ in range(count)]

    return take


def trace_of(name: str, requests: RequestList, key_seed: int = 0) -> Trace:
    """Blocks are numbered at random, by `key_seed`: a policy that samples keys watches other ones with another seed."""
    distinct = list(dict.fromkeys(block for request in requests for block in request.blocks))
    numbers = list(range(len(distinct)))
    random.Random(key_seed).shuffle(numbers)
    number_of = dict(zip(distinct, numbers, strict=True))
    blocks = array("I", (number_of[block] for request in requests for block in request.blocks))
    starts = array("Q", accumulate((len(request.blocks) for request in requests), initial=0))
    seconds = array("d", (request.seconds for request in requests))
    return Trace(name, "requests", blocks, starts, seconds, bytes(len(requests)), ("",), len(distinct))


def requests_of(trace: Trace) -> Iterator[Request]:
    for r in range(trace.requests):
        yield Request(trace.seconds[r], list(trace.blocks[trace.starts[r] : trace.starts[r + 1]]))
