"""Servers that answer what real ones answer seldom, played by a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmcache_core import Outcome, ResourceError
from lmcache_devkit.borrowed_memory import UNWRITTEN, BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES
from plugins.l2_redis.tests.scripted import Scripted
from tests.remote.redis_servers import wait_for

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
OpenRedis = Callable[..., L2Driver]


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n", b"-MASTERDOWN Link with MASTER is down\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n", b"-READONLY You can't write against a read only replica.\r\n", b"",
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory, answer: bytes
) -> None:
    driver = open_at(scripted.port)
    key = object_key(1)
    whole = memory.sealed(key, payload_of(1, 10_000))
    stored = bytes(whole.view)
    value = b"$%d\r\n%b\r\n" % (len(stored), stored)
    scripted.answers = {"GET": [answer, answer, value], "SET": [answer, b"+OK\r\n"], "EXISTS": [answer, b":1\r\n"]}
    assert driver.verified_load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
    assert driver.store((key, whole)) == (DONE,)
    assert driver.has(key) == (DONE,)
    scripted.answers = {"GET": [answer]}
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert scripted.asked.count("GET") == 6


@pytest.mark.parametrize(
    "answer",
    [b"-NOAUTH Authentication required.\r\n", b"-NOPERM no\r\n", b"+OK\r\n", b"hello\r\n", b"$-7\r\n", b":1\r\n"],
)
def test_what_does_not_pass_fails_at_once(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory, answer: bytes
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [answer]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert scripted.asked.count("GET") == 1


@pytest.mark.parametrize("length", [OBJECT_BYTES + 1, 1 << 50])
def test_of_a_value_that_is_too_long_no_byte_is_taken(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory, length: int
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [b"$%d\r\n" % length + b"x" * 20_000, b"$-1\r\n"], "EXISTS": [b":1\r\n"]}
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((object_key(1), buffer)) == (Outcome.DAMAGED,)
    assert buffer.view == UNWRITTEN * OBJECT_BYTES
    assert driver.load((object_key(2), buffer)) == (MISSING,)


def test_a_value_that_ends_too_early_is_not_an_object_and_its_rest_is_dropped(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port, timeout_seconds=1)
    half = b"$%d\r\n" % OBJECT_BYTES + b"x" * 5000
    scripted.answers = {"GET": [half, b"$-1\r\n"]}
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((object_key(1), buffer)) == (Outcome.TIMED_OUT,)
    assert driver.load((object_key(2), buffer)) == (MISSING,)


def test_a_value_with_another_end_is_not_an_object(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [b"$%d\r\n" % OBJECT_BYTES + b"x" * OBJECT_BYTES + b"xx"]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)


def test_redirections_that_never_end_are_abandoned(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n" % scripted.port
    scripted.answers = {"CLUSTER": [slots]}
    driver = open_at(nodes=[f"127.0.0.1:{scripted.port}"])
    scripted.asked.clear()
    scripted.answers |= {"GET": [b"-MOVED 5 :%d\r\n" % scripted.port]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert 5 <= scripted.asked.count("GET") <= 15


@pytest.mark.parametrize("answer", [b"-MOVED x\r\n", b"-ASK 1 nowhere\r\n", b"-MOVED 1 a:99999999\r\n"])
def test_a_redirection_to_nowhere_fails(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory, answer: bytes
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [answer]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)


@pytest.mark.parametrize(
    "answer", [b"*0\r\n", b"*1\r\n:1\r\n", b"*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:0\r\n", b":1\r\n"]
)
def test_slots_that_cannot_be_read_are_refused(scripted: Scripted, open_at: OpenRedis, answer: bytes) -> None:
    scripted.answers = {"CLUSTER": [answer]}
    with pytest.raises(ResourceError, match=f"127.0.0.1:{scripted.port}"):
        open_at(nodes=[f"127.0.0.1:{scripted.port}"])


def test_a_server_that_repeats_the_password_is_not_quoted(
    scripted: Scripted, open_at: OpenRedis, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "open-sesame-4711"
    scripted.answers = {"AUTH": [b"-ERR unknown command `AUTH`, with args beginning with: `%b`\r\n" % secret.encode()]}
    with pytest.raises(ResourceError, match="refuses AUTH") as refused:
        open_at(scripted.port, password=secret)
    assert secret not in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}{caplog.text}"


def test_what_a_lost_answer_left_open_is_counted_anew(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port)
    counts = scripted.asked.count("SCAN")
    key = object_key(1)
    scripted.answers = {"SET": [b""]}
    assert driver.store((key, memory.sealed(key, payload_of(1, 100)))) == (FAILED,)
    wait_for(lambda: scripted.asked.count("SCAN") > counts, "nothing is counted anew")


def test_a_server_of_another_protocol_is_refused(scripted: Scripted, open_at: OpenRedis) -> None:
    scripted.answers = {"INFO": [b"HTTP/1.1 400 Bad Request\r\n\r\n"]}
    with pytest.raises(ResourceError, match="speaks the protocol"):
        open_at(scripted.port)
