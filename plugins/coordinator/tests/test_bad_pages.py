"""Pages of journals that are cut, mangled or made up: refused whole, or taken in as what they say; never a fault."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.routes.requests import STATUS
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import HashChain, KeySpace, SystemClock
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_fleet.messages import (
    HASH_BYTES,
    JournalPage,
    Kind,
    Run,
    SnapshotPage,
    decode_heartbeat,
    decode_lookup,
    encode,
)

SPACES = [KeySpace("m", 0x01000100, 0, salt, 16, HashChain.BLAKE3, bytes(16)).tail for salt in ("", "a")]
HASHES = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
RUNS = st.lists(
    st.builds(
        Run,
        st.sampled_from(Kind),
        st.integers(0, 2),
        st.integers(0, 2**63 - 1),
        st.lists(HASHES, min_size=1, max_size=3).map(b"".join) | st.binary(max_size=40),
    ),
    max_size=3,
).map(tuple)
ABOUT: dict[str, Any] = {
    "instance": st.sampled_from(["one", "two", "\u0000", "x" * 300]),
    "incarnation": st.sampled_from(["1", "2"]),
    "source": st.sampled_from(["l1", "redis"]),
    "backend": st.sampled_from(["", "redis"]),
    "shared": st.booleans(),
    "worker": st.integers(0, 3),
    "spaces": st.lists(st.sampled_from(SPACES) | st.binary(max_size=60), max_size=3).map(tuple),
    "runs": RUNS,
}
NUMBERS = st.integers(0, 5) | st.integers(-(2**63), 2**64 - 1)
PAGES = st.one_of(
    st.builds(JournalPage, first=NUMBERS, **ABOUT),
    st.builds(SnapshotPage, snapshot=NUMBERS, begins_at=NUMBERS, page=st.integers(0, 2), last=st.booleans(), **ABOUT),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    data = bytearray(encode(draw(PAGES)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


FRAMES = st.one_of(mangled(), PAGES.map(encode), st.binary(max_size=200), VALUES.map(msgspec.msgpack.encode))


def new_coordinator() -> Coordinator:
    coordinator = Coordinator(read_settings(()), SqliteState(":memory:"), LeastRecentlyUsed, SystemClock())
    for name in ("one", "two"):
        coordinator.registry.register(name, Registration(incarnation="1"), None, False)
    return coordinator


def known(coordinator: Coordinator) -> Any:
    counts = coordinator.placements.counts()
    return {each: keys for each, keys in counts.items() if keys}, dict(coordinator.usage.by_salt())


def take(coordinator: Coordinator, data: bytes) -> LMCacheError | None:
    try:
        coordinator.take_page(data, None)
    except LMCacheError as error:
        return error
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=12))
def test_a_refused_page_changes_nothing(frames: list[bytes]) -> None:
    coordinator = new_coordinator()
    for data in frames:
        before = known(coordinator)
        refused = take(coordinator, data)
        if refused is not None:
            assert type(refused) in STATUS, "every error has its status"
            assert len(str(refused)) < 1000
            assert known(coordinator) == before
        coordinator.lookup(decode_lookup(msgspec.msgpack.encode({"parts": [[SPACES[0], bytes(HASH_BYTES)]]})))


@settings(max_examples=200, deadline=None)
@given(FRAMES)
def test_lookups_and_heartbeats_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_lookup, decode_heartbeat):
        with suppress(ProtocolError):
            decode(data)
