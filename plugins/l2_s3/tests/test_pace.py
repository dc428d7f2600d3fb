"""How many requests are under way, whatever the store says to it."""

from __future__ import annotations

import asyncio

import pytest

from lmcache_devkit.fake_clock import FakeClock
from lmcache_l2_s3.answers import Answer, Reply, S3Error
from lmcache_l2_s3.pace import PAUSE_SECONDS_MAX, Pace
from lmcache_l2_s3.store_answers import REFUSALS_MAX, StoreAnswers


def test_complaints_halve_it_once_for_each_load_and_answers_bring_it_back() -> None:
    clock = FakeClock()
    pace = Pace(64, clock)
    assert pace.complained(1) > 0
    pace.complained(1)
    assert (pace.limit, pace.cuts) == (32, 1)
    for _ in range(20):
        clock.advance(1)
        assert pace.complained(50) <= PAUSE_SECONDS_MAX
    assert pace.limit == 1
    for _ in range(10):
        pace.went_well()
    assert 2 <= pace.limit <= 10
    for _ in range(5_000):
        pace.went_well()
    assert pace.limit == 64


def test_no_more_are_under_way_than_the_limit_and_cancelled_ones_take_no_place() -> None:
    async def check() -> None:
        pace = Pace(2, FakeClock())
        inside = 0
        most = 0
        go_on = asyncio.Event()

        async def request() -> None:
            nonlocal inside, most
            async with pace.place():
                inside += 1
                most = max(most, inside)
                await go_on.wait()
                inside -= 1

        tasks = [asyncio.create_task(request()) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside == 2
        for task in tasks[0], tasks[5]:  # one inside, one that waits
            task.cancel()
        go_on.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == 2
        assert most == 2
        async with asyncio.timeout(5), pace.place(), pace.place():
            pass

    asyncio.run(check())


def answers(*replies: Reply) -> tuple[StoreAnswers, list[Reply]]:
    return StoreAnswers("s3", 4, FakeClock()), list(replies)


def test_what_is_throttled_is_asked_again_until_it_is_not() -> None:
    store, replies = answers(Reply(Answer.THROTTLED, 503), Reply(Answer.THROTTLED, 429), Reply(Answer.OK, 200))

    async def send() -> Reply:
        return replies.pop(0)

    assert asyncio.run(store.ask("loading", send)).answer is Answer.OK
    counters = store.counters()
    assert counters["answers_throttled"] == 2
    assert counters["slowed_down"] == 1
    assert counters["in_flight_limit"] == 2


def test_one_that_is_refused_is_an_answer_and_all_that_are_refused_are_a_fault() -> None:
    store, _ = answers()
    refused = Reply(Answer.REFUSED, 403, "AccessDenied")

    async def ask(reply: Reply) -> Answer:
        async def send() -> Reply:
            return reply

        return (await store.ask("loading", send, Answer.REFUSED, Answer.ABSENT)).answer

    async def check() -> None:
        for _ in range(3):
            for _ in range(REFUSALS_MAX - 1):
                assert await ask(refused) is Answer.REFUSED
            assert await ask(Reply(Answer.ABSENT, 404)) is Answer.ABSENT
        for _ in range(REFUSALS_MAX - 1):
            await ask(refused)
        for _ in range(3):
            with pytest.raises(S3Error, match="check what the credentials may do"):
                await ask(refused)
        assert await ask(Reply(Answer.OK)) is Answer.OK
        assert await ask(refused) is Answer.REFUSED

    asyncio.run(check())
