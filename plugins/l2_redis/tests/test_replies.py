"""Replies are read alike however they arrive, and what is none of them ends the connection and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ProtocolError
from lmcache_l2_redis import replies as module
from lmcache_l2_redis.replies import (
    BUFFER_BYTES,
    BULK_MAX_BYTES,
    ErrorReply,
    Passed,
    Reply,
    ReplyReader,
    command,
    command_around,
)

Value = TypeVar("Value")


class Arriving:
    """Bytes that come in these parts, and then the end."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = [part for part in parts if part]

    async def receive(self, into: memoryview) -> int:
        if not self._parts:
            raise ConnectionResetError("the end")
        part = self._parts.pop(0)
        count = min(len(part), len(into))
        into[:count] = part[:count]
        if count < len(part):
            self._parts.insert(0, part[count:])
        return count

    async def fill(self, into: memoryview, behind: memoryview, count: int, passed: Passed) -> int:
        while len(into):
            got = await self.receive(into)
            passed(into[:got])
            into = into[got:]
        got = 0
        while got < count:
            got += await self.receive(behind[got:])
        return got


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Nothing here ever waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    raise AssertionError("it waits for something")


def read(data: bytes, cuts: Sequence[int] = ()) -> Reply:
    reader = ReplyReader(Arriving(parts(data, cuts)))
    return run(reader.reply())


def parts(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


texts = st.binary(max_size=40).filter(lambda text: b"\r" not in text and b"\n" not in text)
leaves = (
    texts.map(lambda text: (b"+" + text + b"\r\n", text))
    | st.binary(max_size=200).map(lambda data: (b"$%d\r\n%b\r\n" % (len(data), data), data))
    | st.integers(-(2**63), 2**63 - 1).map(lambda number: (b":%d\r\n" % number, number))
    | st.sampled_from([(b"$-1\r\n", None), (b"*-1\r\n", None), (b"_\r\n", None)])
    | st.text("abcXYZ ", min_size=1, max_size=30).map(lambda text: (b"-" + text.encode() + b"\r\n", ErrorReply(text)))
)
replies: st.SearchStrategy[tuple[bytes, Any]] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4).map(
        lambda items: (b"*%d\r\n" % len(items) + b"".join(wire for wire, _ in items), [value for _, value in items])
    ),
    max_leaves=12,
)


@given(st.lists(replies, min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=30))
def test_replies_are_what_was_sent_wherever_they_are_cut(sent: list[tuple[bytes, Any]], cuts: list[int]) -> None:
    reader = ReplyReader(Arriving(parts(b"".join(wire for wire, _ in sent), cuts)))
    assert [run(reader.reply()) for _ in sent] == [value for _, value in sent]


@given(replies)
def test_a_reply_may_come_byte_by_byte(sent: tuple[bytes, Any]) -> None:
    wire, value = sent
    assert read(wire, range(len(wire))) == value


@given(st.binary(max_size=5000), st.lists(st.integers(0, 6000), max_size=20), replies)
def test_a_value_goes_into_the_memory_it_is_for_and_what_follows_is_read_after_it(
    data: bytes, cuts: list[int], behind: tuple[bytes, Any]
) -> None:
    wire = b"$%d\r\n%b\r\n" % (len(data), data) + behind[0]
    reader = ReplyReader(Arriving(parts(wire, cuts)))
    into = bytearray(b"\xee" * (len(data) + 8))
    assert run(reader.bulk_length()) == len(data)
    shown: list[bytes] = []
    run(reader.bulk_into(memoryview(into)[: len(data)], lambda part: shown.append(bytes(part))))
    assert into == data + b"\xee" * 8
    assert b"".join(shown) == data
    assert run(reader.reply()) == behind[1]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_garbage_is_a_reply_or_an_error_of_the_protocol_or_too_short(data: bytes, cuts: list[int]) -> None:
    for first in ("reply", "bulk_length"):
        reader = ReplyReader(Arriving(parts(data, cuts)))
        try:
            run(getattr(reader, first)())
        except (ProtocolError, ConnectionError):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n", b"$x\r\n", b"$-2\r\n", b"$99999999999999999999999\r\n", b"*-2\r\n", b":1.5\r\n", b"$3\r\nabcd\r\n",
        b"$%d\r\n" % (BULK_MAX_BYTES + 1), b"*99999999\r\n", b"*1\r\n" * 20, b"+" + b"x" * (BUFFER_BYTES + 10), b"\r\n",
    ],
    ids=lambda data: repr(data[:16]),
)  # fmt: skip
def test_what_is_not_a_reply_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data)


def test_a_reply_of_many_parts_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    part = b"$1000\r\n" + b"x" * 1000 + b"\r\n"
    monkeypatch.setattr(module, "REPLY_BYTES_MAX", 5100)
    assert read(b"*5\r\n" + 5 * part) == [b"x" * 1000] * 5
    with pytest.raises(ProtocolError, match="more than 5100 bytes"):
        read(b"*6\r\n" + 6 * part)


@pytest.mark.parametrize("data", [b"+OK\r\n", b":3\r\n", b"*0\r\n", b"$-5\r\n"])
def test_a_value_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        run(ReplyReader(Arriving([data])).bulk_length())


def test_no_value_and_an_error_are_distinguished() -> None:
    reader = ReplyReader(Arriving([b"$-1\r\n_\r\n-LOADING wait\r\n"]))
    assert [run(reader.bulk_length()) for _ in range(3)] == [None, None, ErrorReply("LOADING wait")]


def test_a_line_is_found_across_the_end_of_the_buffer() -> None:
    texts = [b"x" * 30_000, b"y" * 30_000, b"z" * 30_000]
    reader = ReplyReader(Arriving([b"".join(b"+" + text + b"\r\n" for text in texts)]))
    assert [run(reader.reply()) for _ in texts] == texts


def test_resp3_maps_sets_and_verbatim_texts_are_read() -> None:
    assert read(b"%1\r\n+a\r\n:1\r\n") == [b"a", 1]
    assert read(b"~2\r\n+a\r\n#t\r\n") == [b"a", b"t"]
    assert read(b"=7\r\ntxt:abc\r\n") == b"txt:abc"
    assert read(b"!5\r\nERR x\r\n") == ErrorReply("ERR x")


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_a_command_is_an_array_of_its_arguments(arguments: list[bytes]) -> None:
    assert read(command(*arguments)) == arguments


@given(st.binary(max_size=100))
def test_a_command_may_be_sent_around_a_value(value: bytes) -> None:
    head, tail = command_around(("SET", b"name"), len(value), ("NX", "EX", 5))
    assert read(head + value + tail) == [b"SET", b"name", value, b"NX", b"EX", b"5"]


def test_an_event_loop_is_not_needed_to_read() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert read(b"+OK\r\n") == b"OK"
