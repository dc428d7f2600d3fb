"""Two engines of one server: what one computed the other one takes, to the last whole block."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from demo.child_process import ChildError
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, HEARTBEAT_SECONDS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

BLOCK_TOKENS = 32
KILL_SECONDS = 0.3
LENGTHS = (40, 255, 256, 257, 300, 800, 1_000, 1_055)
"""Less than a chunk, at the ends of blocks and chunks, and in the middle."""


class Pair(NamedTuple):
    prefill: EngineProcess
    decode: EngineProcess


@pytest.fixture(scope="module")
def pair(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("handoff")
    extra = {
        "lmcache.heartbeat_seconds": HEARTBEAT_SECONDS,
        "lmcache.lookup_timeout_ms": 20_000,
        "lmcache.pd_role": "both",
        "lmcache.handoff_progress_seconds": 20.0,  # a step of prefill may take long on a busy machine
    }
    options = ("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS))
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(options, folder / "server.log"))
        yield Pair(
            *(
                stack.enter_context(
                    EngineProcess(
                        folder / f"{name}.log",
                        port=server.port,
                        connector="own",
                        extra=extra,
                        block_size=BLOCK_TOKENS,
                    )
                )
                for name in Pair._fields
            )
        )


def test_less_than_a_block_is_computed_again(pair: Pair, reference: Reference) -> None:
    prompts = [random_prompt(90 + number, length) for number, length in enumerate(LENGTHS)]
    truth = reference.answers(prompts)
    stored = pair.prefill.ask(prompts)
    assert_computed(stored)
    taken = pair.decode.ask(prompts)
    assert_right(stored + taken, truth + truth)
    assert_cached(taken, BLOCK_TOKENS)


def test_a_tail_of_another_prompt_is_not_taken(pair: Pair, reference: Reference) -> None:
    """Shorter, longer, and another in its last block."""
    prompt = random_prompt(80, CHUNK_TOKENS + 4 * BLOCK_TOKENS)
    assert_computed(pair.prefill.ask([prompt]))
    others = [
        prompt[: -2 * BLOCK_TOKENS],
        prompt + random_prompt(81, 2 * BLOCK_TOKENS),
        prompt[:-1] + random_prompt(82, 1),
        prompt[: -BLOCK_TOKENS - 1] + random_prompt(83, BLOCK_TOKENS + 1),
    ]
    assert others[2] != prompt
    answers = pair.decode.ask(others)
    assert_right(answers, reference.answers(others))
    assert [answer.cached_tokens for answer in answers] == [CHUNK_TOKENS] * len(others)


GIVE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
"""What vLLM's proxies ask an engine that prefills for."""


def given_by(engine: EngineProcess, prompt: list[int]) -> dict[str, Any]:
    """What it answers, but for the entry with which vLLM would report prefill's cached tokens in place of decode's."""
    answer = engine.ask_with(prompt, GIVE, max_tokens=1)
    assert answer.kv_transfer_params is not None
    return {name: value for name, value in answer.kv_transfer_params.items() if name != "remote_prefill_cached_tokens"}


def test_one_hand_off_is_used_twice(pair: Pair, reference: Reference) -> None:
    """In the request sequence of vLLM's own proxies; decode is asked as soon as prefill has answered."""
    prompts = [random_prompt(110 + number, length) for number, length in enumerate(LENGTHS)]
    truth = reference.answers(prompts)
    taken = []
    for prompt in prompts:
        params = given_by(pair.prefill, prompt)
        assert params["remote_num_tokens"] == len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
        assert (params["do_remote_prefill"], params["remote_block_ids"], params["lmcache.handoff"]) == (True, [], True)
        taken += [pair.decode.ask_with(prompt, params) for _ in range(2)]
    assert_cached(taken, BLOCK_TOKENS)
    assert_right(taken, [answer for answer in truth for _ in range(2)])


def test_both_are_asked_at_once(pair: Pair, reference: Reference) -> None:
    """Decode waits for prefill, which is asked later, and takes what it stores."""
    prompt = random_prompt(130, 3_000)
    taking = {"do_remote_prefill": True, "remote_block_ids": [], "lmcache.handoff": True, "lmcache.handoff_id": "both"}
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(pair.decode.ask_with, prompt, taking)
        pair.prefill.ask_with(prompt, {**GIVE, "lmcache.handoff_id": "both"}, max_tokens=1)
        taken = asked.result(120)
    assert_cached([taken], BLOCK_TOKENS)
    assert_right([taken], reference.answers([prompt]))


def test_one_that_is_forged_or_whose_prompt_is_another(pair: Pair, reference: Reference) -> None:
    """The answer is right, and computed."""
    first, second = (random_prompt(seed, 600) for seed in (131, 132))
    params = given_by(pair.prefill, first)
    forged = {**params, "lmcache.handoff_id": "forged", "remote_num_tokens": 10**6}
    prompts = [second, random_prompt(133, 600)]
    answers = [pair.decode.ask_with(*asked) for asked in zip(prompts, (params, forged), strict=True)]
    assert_computed(answers)
    assert_right(answers, reference.answers(prompts))


@pytest.mark.slow
def test_prefill_dies_half_way(pair: Pair, reference: Reference) -> None:
    """Decode takes what is there when nothing new is for as long as it waits.  The last test: it kills the engine."""
    prompt = random_prompt(134, 8_000)
    taking = {"do_remote_prefill": True, "remote_block_ids": [], "lmcache.handoff": True, "lmcache.handoff_id": "dies"}
    with ThreadPoolExecutor(2) as threads:
        giving = threads.submit(pair.prefill.ask_with, prompt, {**GIVE, "lmcache.handoff_id": "dies"}, max_tokens=1)
        asked = threads.submit(pair.decode.ask_with, prompt, taking)
        time.sleep(KILL_SECONDS)
        pair.prefill.kill()
        with pytest.raises(ChildError):
            giving.result(60)
        taken = asked.result(120)
    assert_right([taken], reference.answers([prompt]))
    assert taken.cached_tokens < len(prompt) - BLOCK_TOKENS
