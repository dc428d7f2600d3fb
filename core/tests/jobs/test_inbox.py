"""Every message that is posted is seen by the thread that polls."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

import pytest

from lmcache_core.jobs.queues import Inbox

POSTERS, POSTS = 4, 3000


def readable(inbox: Inbox[int]) -> bool:
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


def test_it_is_readable_while_something_was_posted_since_the_last_drain() -> None:
    inbox: Inbox[int] = Inbox()
    assert not readable(inbox)
    for number in range(3):
        inbox.post(number)
        assert readable(inbox)
    assert (len(inbox), inbox.drain(), inbox.drain()) == (3, [0, 1, 2], [])
    assert not readable(inbox)
    inbox.post(3)
    assert readable(inbox)
    inbox.clear_wakes()
    assert not readable(inbox)
    assert inbox.take() == 3
    assert inbox.take() is None
    inbox.wake()
    assert readable(inbox)
    inbox.close()
    inbox.post(4)
    inbox.close()


def test_what_is_posted_while_wakes_are_cleared_is_taken_or_wakes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox: Inbox[str] = Inbox()
    read = os.eventfd_read

    def read_between_two_posts(descriptor: int) -> int:
        inbox.post("just before")
        value = read(descriptor)
        inbox.post("just after")
        return value

    inbox.post("first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd_read", read_between_two_posts)
        assert inbox.drain() == ["first", "just before", "just after"]
    inbox.post("later")
    assert select.select([inbox.fileno()], [], [], 0)[0]
    inbox.close()


def test_no_post_is_missed_by_one_who_waits_for_ever() -> None:
    inbox: Inbox[tuple[int, int]] = Inbox()

    def post(poster: int) -> None:
        for number in range(POSTS):
            inbox.post((poster, number))

    threads = [threading.Thread(target=post, args=(poster,)) for poster in range(POSTERS)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, int]] = []
    while len(seen) < POSTERS * POSTS:
        assert select.select([inbox.fileno()], [], [], 10)[0], "a message was posted and the poller did not wake"
        seen += inbox.drain()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(poster, number) for poster in range(POSTERS) for number in range(POSTS)]
    assert all([n for p, n in seen if p == poster] == list(range(POSTS)) for poster in range(POSTERS))
    inbox.close()


def test_an_inbox_that_was_not_closed_closes_its_descriptor() -> None:
    inbox: Inbox[int] = Inbox()
    descriptor = inbox.fileno()
    del inbox
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("kind", ["Inbox", "CompletionQueue"])
def test_one_that_lives_until_the_interpreter_ends_says_nothing(kind: str) -> None:
    program = f"import os; from lmcache_core.jobs.queues import {kind}; os.kept = {kind}()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
