from __future__ import annotations

import os
import select
import threading

import pytest

from lmcache_core import BuffersReleased, CompletionQueue, JobDone, JobId, Outcome


def readable(queue: CompletionQueue, milliseconds: int = 0) -> bool:
    poll = select.poll()
    poll.register(queue.fileno(), select.POLLIN)
    return bool(poll.poll(milliseconds))


def done(number: int) -> JobDone:
    return JobDone(JobId(number), (Outcome.DONE,))


def test_the_descriptor_is_readable_exactly_while_something_waits() -> None:
    queue = CompletionQueue()
    assert not readable(queue)
    queue.post(done(1))
    queue.post(BuffersReleased(JobId(1)))
    assert readable(queue)
    assert queue.drain() == [done(1), BuffersReleased(JobId(1))]
    assert not readable(queue)
    assert queue.drain() == []
    queue.post(done(2))
    assert readable(queue)


def test_eight_posting_threads_lose_nothing_and_wake_the_reader_each_time() -> None:
    queue = CompletionQueue()
    each = 2_000

    def post(base: int) -> None:
        for number in range(each):
            queue.post(done(base + number))

    threads = [threading.Thread(target=post, args=(thread * each,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    while len(seen) < 8 * each:
        assert readable(queue, 10_000), f"asleep with {8 * each - len(seen)} completions to come"
        seen += [completion.job for completion in queue.drain()]
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(8 * each))
    assert not readable(queue)


def test_after_close_what_is_posted_is_kept_and_no_descriptor_is_touched() -> None:
    queue = CompletionQueue()
    fd = queue.fileno()
    queue.post(done(1))
    queue.close()
    queue.close()
    assert queue.fileno() == -1
    reader, writer = os.pipe2(os.O_NONBLOCK)  # takes the number that the queue gave back
    assert fd in (reader, writer)
    queue.post(done(2))
    with pytest.raises(BlockingIOError):
        os.read(reader, 8)
    assert queue.drain() == [done(1), done(2)]
    os.close(reader)
    os.close(writer)


def test_a_queue_without_references_closes_its_descriptor() -> None:
    queue = CompletionQueue()
    fd = queue.fileno()
    del queue
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
