"""Each job is answered once, and its buffers are released once, in whatever order its objects come to their ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import BuffersReleased, CompletionQueue, JobDone, Outcome
from lmcache_core.jobs.queues import JobTable

DONE, FAILED, TIMED_OUT = Outcome.DONE, Outcome.FAILED, Outcome.TIMED_OUT


@given(st.integers(1, 4), st.booleans(), st.data())
def test_in_any_order(size: int, lends_buffers: bool, data: st.DataObject) -> None:
    """Each object may be abandoned before it has an outcome, and the table may be abandoned at any time."""
    queue = CompletionQueue()
    table = JobTable(queue)
    job = table.open(size, lends_buffers=lends_buffers)
    abandoned = [data.draw(st.booleans()) for _ in range(size)]
    steps = [("settle", index) for index in range(size)] + [("give up", i) for i in range(size) if abandoned[i]]
    steps = data.draw(st.permutations([*steps, ("abandon", 0)]))
    outcomes: list[Outcome | None] = [None] * size
    unsettled = set(range(size))
    expected: list[object] = []

    def answer() -> None:
        reported = tuple(outcome or FAILED for outcome in outcomes)
        expected.append(JobDone(job.id, reported, released=not (lends_buffers and unsettled)))

    for what, index in steps:
        is_answered = bool(expected)
        if what == "abandon":
            assert table.abandon() == (0 if is_answered else len(unsettled))
            if not is_answered:
                answer()
            continue
        if what == "give up":
            if index not in unsettled:
                continue  # its timer was stopped
            table.report(job, index, TIMED_OUT)
            if not is_answered:
                outcomes[index] = TIMED_OUT
        else:
            unsettled.remove(index)
            is_news = not is_answered and outcomes[index] is None
            assert table.settle(job, index, DONE) is is_news
            if is_news:
                outcomes[index] = DONE
        if not is_answered and None not in outcomes:
            answer()
        elif is_answered and what == "settle" and lends_buffers and not unsettled:
            expected.append(BuffersReleased(job.id))
    assert queue.drain() == expected
    assert table.in_flight == 0
    queue.close()
