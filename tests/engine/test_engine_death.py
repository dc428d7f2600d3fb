"""An engine is killed while it stores and loads for many clients: what it held comes free, and its prompts are answered
right by another one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from demo.child_process import ChildError
from demo.prompts import random_prompt
from tests.engine.busy_site import LOOKUP_SECONDS, BusySite
from tests.engine.comparison import assert_right
from tests.engine.concurrent_engine import ConcurrentEngine, Request
from tests.engine.reference import Reference
from tests.engine.site import ALLOWANCE_SECONDS

pytestmark = pytest.mark.engine

CLIENTS = 16
TOKENS = 1_200
CATCH_SECONDS = 60.0
"""For the engine to be caught between a prepare and its commit."""
NEW_PER_WAVE = CLIENTS // 2


@pytest.fixture
def victim(busy_site: BusySite) -> Iterator[ConcurrentEngine]:
    with busy_site.new_engine("victim") as engine:
        yield engine


def keep_busy(engine: ConcurrentEngine, known: list[list[int]], ended: threading.Event) -> None:
    """Waves of clients, half of them with prompts that the cache may know, until the engine dies."""
    wave = 0
    try:
        while True:
            wave += 1
            new = [random_prompt(50_000 + wave * CLIENTS + number, TOKENS) for number in range(NEW_PER_WAVE)]
            engine.serve([Request(prompt) for prompt in new + known], timeout_seconds=CATCH_SECONDS)
    except ChildError:
        ended.set()


def kill_in_a_transfer(site: BusySite, engine: ConcurrentEngine) -> dict[str, int]:
    """Stop the engine again and again until a stop falls between a prepare and its commit; kill it there.  What the
    server holds then."""
    rng = random.Random(7)
    deadline = time.monotonic() + CATCH_SECONDS
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(0.0, 0.02))
        engine.pause()
        held = site.held()
        if held["stores_prepared"] or held["reads_prepared"]:
            engine.kill()
            return held
        engine.resume()
    raise TimeoutError(f"no transfer was under way at any stop in {CATCH_SECONDS:.0f} s")


@pytest.mark.slow
def test_what_a_killed_engine_held_comes_free(
    busy_site: BusySite, victim: ConcurrentEngine, reference: Reference
) -> None:
    known = [random_prompt(60_000 + number, TOKENS) for number in range(CLIENTS - NEW_PER_WAVE)]
    truth = reference.answers(known)
    ended = threading.Event()
    clients = threading.Thread(target=keep_busy, args=(victim, known, ended))
    clients.start()
    try:
        held = kill_in_a_transfer(busy_site, victim)
    finally:
        victim.kill()
        clients.join(ALLOWANCE_SECONDS)
    assert ended.is_set()
    print({"held when it was killed": held})

    while_it_is_held = busy_site.engine.ask_together(known)
    assert_right(while_it_is_held, truth)
    busy_site.wait_nothing_held(LOOKUP_SECONDS + ALLOWANCE_SECONDS)
    assert len(busy_site.server.status()["workers"]) == 1
    afterwards = busy_site.engine.ask_together(known)
    assert_right(afterwards, truth)
    assert any(answer.cached_tokens for answer in while_it_is_held + afterwards)
