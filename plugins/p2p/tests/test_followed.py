"""How a server follows a hand-off of another one, whose answers a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from lmcache_client.handoff import COMPLETE, HASH_BYTES, OPEN, UNKNOWN, HandoffState
from lmcache_p2p.coordinators import Hints
from lmcache_p2p.followed import Follower

HASHES = tuple(bytes([number]) * HASH_BYTES for number in range(4))


class FakeReader:
    """Of a server whose answers come at once."""

    def __init__(self, *answers: HandoffState) -> None:
        """The last one is given again and again."""
        self.answers, self.asked, self.hints = list(answers), list[int](), Hints()
        self.work: Callable[[], Coroutine[Any, Any, Any]] | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        self.work = work
        return True

    async def ask(self, server: str, operation: Any, name: str, known: int, wait: float, seconds: float) -> Any:
        self.asked.append(known)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def hinted(self) -> list[bool]:
        return [bool(self.hints.peer_of(SimpleNamespace(chunk_hash=each))) for each in HASHES]  # type: ignore[arg-type]


class FakeHandoffs:
    """Someone waits for all of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.ended = seconds, False
        self.reasons: list[str] = []

    def heard(self, handoff_id: str, state: str, chunks: int) -> None: ...

    def cannot_read(self, reason: str) -> None:
        self.reasons.append(reason)

    def is_awaited(self, handoff_id: str) -> bool:
        return True

    def over(self, handoff_id: str) -> None:
        self.ended = True


def followed(
    reader: FakeReader, known: int, seconds: float = 1.0, reasons: Sequence[str] = (), pulls: int | None = None
) -> float:
    """How long it was followed, for an engine with one rank."""
    pulled: list[Any] = []
    storage = SimpleNamespace(lookup=pulled.append, end_lookup=lambda *pull: None)
    handoffs, parts = FakeHandoffs(seconds), SimpleNamespace()
    parts.reader, parts.storage = reader, storage
    assert Follower(parts.reader, parts.storage, handoffs).start("h", "s0", known, 1, (), HASHES)
    assert reader.work is not None

    async def until_over() -> float:
        start = time.monotonic()
        following = asyncio.create_task(reader.work())  # type: ignore[misc]
        while not handoffs.ended:
            await asyncio.sleep(0.005)
        following.cancel()  # it holds what was pulled for a while
        return time.monotonic() - start

    taken = asyncio.run(until_over())
    assert handoffs.reasons == list(reasons)
    assert pulls is None or len(pulled) == pulls
    return taken


def test_one_that_is_not_opened_is_asked_about_with_pauses_and_not_for_ever() -> None:
    reader = FakeReader(HandoffState(UNKNOWN))
    assert followed(reader, -1, seconds=0.5) < 5.0
    assert set(reader.asked) == {-1}
    assert len(reader.asked) < 40


def test_one_that_is_opened_and_has_no_chunk_is_news() -> None:
    reader = FakeReader(HandoffState(OPEN), HandoffState(UNKNOWN))
    followed(reader, -1)
    assert reader.asked == [-1, 0]


def test_chunks_are_hinted_at_as_they_are_stored() -> None:
    """And those that who waits knows already."""
    reader = FakeReader(HandoffState(OPEN, 2, HASHES[1]), HandoffState(UNKNOWN))
    followed(reader, 1)
    assert reader.hinted() == [True, True, False, False]
    reader = FakeReader(HandoffState(COMPLETE, 4, b"".join(HASHES)))
    followed(reader, -1)
    assert reader.hinted() == [True] * 4


def test_one_of_an_engine_with_other_ranks_ends_with_its_first_chunk() -> None:
    """What is stored there cannot be read here: it is not pulled, and nothing waits for it."""
    reader = FakeReader(HandoffState(OPEN), HandoffState(OPEN, 1, HASHES[0], world_size=2))
    assert followed(reader, -1, seconds=30.0, reasons=["world_size"], pulls=0) < 5.0
    reader = FakeReader(HandoffState(COMPLETE, 1, HASHES[0], world_size=1))
    followed(reader, -1, pulls=1)
