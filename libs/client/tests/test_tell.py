"""Requests without a waiter for the answer."""

from __future__ import annotations

import msgspec
import pytest

from libs.client.tests.scripted_server import ECHO, ScriptedServer, echo
from lmcache_client.channel import EngineChannel
from lmcache_client.errors import NoAnswerError


def test_the_answer_to_tell_is_dropped(server: ScriptedServer, channel: EngineChannel) -> None:
    """However many there are, none of their answers is taken for another one, and requests keep their order."""
    server.answer = echo
    for number in range(2000):
        channel.tell(ECHO, number)
        if not number % 100:
            assert channel.call(ECHO, -number) == -number
    assert channel.call(ECHO, 7) == 7
    values = [msgspec.msgpack.decode(request[3]) for request in server.requests]
    assert [value for value in values if value > 0] == [*range(1, 2000), 7]


def test_tell_leaves_futures_to_be_completed(server: ScriptedServer, channel: EngineChannel) -> None:
    """`tell` takes in what has arrived for others."""
    server.answer = echo
    futures = []
    for number in range(300):
        futures.append(channel.submit(ECHO, number))
        channel.tell(ECHO, 1000)
    assert [future.result(10) for future in futures] == list(range(300))


def test_tell_over_a_closed_channel_sends_nothing(server: ScriptedServer) -> None:
    channel = EngineChannel(server.endpoint)
    channel.close()
    with pytest.raises(NoAnswerError, match="closed"):
        channel.tell(ECHO, 1)
