"""What the coordinator says is wrong, and that it says so only while it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from lmcache_coordinator import spaces
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.dashboard import conditions, instance_details, snapshot
from lmcache_coordinator.models import CacheEvent, EventKey
from lmcache_coordinator.posted_events import REPEATS_MIN, Taken
from lmcache_coordinator.registry import InstanceTakenError, Registration, UnknownInstanceError
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import HashChain, KeySpace
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_devkit import FakeClock
from lmcache_fleet.messages import JournalPage, Kind, Run, encode
from lmcache_fleet.state import StateUnavailableError

SPACE = KeySpace("m", 0, 0, "a", 256, HashChain.BLAKE3, bytes(16))


class BrittleState(SqliteState):
    """One whose store can be away."""

    is_away = False

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        if self.is_away:
            raise StateUnavailableError("the store at 10.0.0.1 does not answer")
        return super().acquire(name, holder, seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state() -> Iterator[BrittleState]:
    made = BrittleState(":memory:")
    yield made
    made.close()


@pytest.fixture
def coordinator(state: BrittleState, clock: FakeClock) -> Coordinator:
    made = Coordinator(read_settings([]), state, LeastRecentlyUsed, clock)
    made.leadership.renew()
    return made


@pytest.fixture
def names(coordinator: Coordinator) -> Callable[[], set[str]]:
    def look() -> set[str]:
        coordinator.leadership.renew()
        return {each.condition.name for each in coordinator.conditions.active()}

    return look


def join(coordinator: Coordinator, name: str, **metadata: object) -> None:
    coordinator.registry.register(name, Registration(ip="10.0.0.1", metadata=metadata, incarnation="1"), None, False)


def journal(name: str, first: int, shared: bool = False) -> bytes:
    runs = (Run(Kind.STORE, 0, 100, bytes(range(32))),)
    return encode(
        JournalPage(
            instance=name,
            incarnation="1",
            source="redis" if shared else "l1",
            backend="redis" if shared else "",
            shared=shared,
            spaces=(SPACE.tail,),
            runs=runs,
            first=first,
        )
    )


def test_a_new_coordinator_is_healthy_and_says_what_is_not_set_up(
    coordinator: Coordinator, names: Callable[[], set[str]]
) -> None:
    assert names() == {"no_members", "no_quota_was_set"}
    assert conditions(coordinator).state == "healthy"
    join(coordinator, "one")
    coordinator.quotas.set("a", 0)
    coordinator.usage.store(("redis", "redis"), SPACE, [bytes(32)], 100)  # type: ignore[arg-type]
    assert names() == set()


def test_quotas_without_anything_that_reports_usage_are_a_warning(
    coordinator: Coordinator, names: Callable[[], set[str]]
) -> None:
    join(coordinator, "one")
    coordinator.quotas.set("a", 1000)
    assert names() == {"no_usage_data"}
    assert conditions(coordinator).state == "degraded"
    coordinator.take_page(journal("one", 0, shared=True), None)
    assert names() == {"backend_not_listed"}
    assert conditions(coordinator).state == "healthy"


def test_a_state_that_does_not_answer(
    coordinator: Coordinator, state: BrittleState, names: Callable[[], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    assert "state_unavailable" not in names()
    state.is_away = True
    assert "state_unavailable" in names()
    said = conditions(coordinator)
    assert (said.state, said.conditions[0].name) == ("degraded", "state_unavailable")
    assert "10.0.0.1 does not answer" in said.reason
    state.is_away = False
    with caplog.at_level(logging.INFO):
        assert "state_unavailable" not in names()
    assert "condition ended name=state_unavailable" in caplog.text


def test_servers_that_cut_chunks_differently_are_named(coordinator: Coordinator, names: Callable[[], set[str]]) -> None:
    join(coordinator, "one", chunk_tokens=256)
    join(coordinator, "two", chunk_tokens=256)
    join(coordinator, "stock")  # says nothing of it
    assert "members_differ" not in names()
    join(coordinator, "three", chunk_tokens=16)
    assert "members_differ" in names()
    assert "16 tokens: three; 256 tokens: one, two" in conditions(coordinator).reason
    coordinator.registry.leave("three", None)
    assert "members_differ" not in names()
    coordinator.families.heard("one", 256, "blake3", "ab" * 32)
    assert "members_differ" not in names()
    coordinator.families.heard("two", 256, "sha256_cbor", "cd" * 32)
    assert "members_differ" in names()
    assert (
        "256 tokens, blake3, seed abababab: one; 256 tokens, sha256_cbor, seed cdcdcdcd: two"
        in conditions(coordinator).reason
    )


def test_a_gap_is_shown_for_a_minute(coordinator: Coordinator, clock: FakeClock, names: Callable[[], set[str]]) -> None:
    join(coordinator, "one")
    coordinator.take_page(journal("one", 0), None)
    assert "journal_gaps" not in names()
    coordinator.take_page(journal("one", 5), None)
    assert "journal_gaps" in names()
    clock.advance(59)
    assert "journal_gaps" in names()
    clock.advance(2)
    assert "journal_gaps" not in names()


def test_gaps_of_posted_events_are_shown(coordinator: Coordinator, names: Callable[[], set[str]]) -> None:
    event = CacheEvent(
        type="store", key=EventKey.model_validate({"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0}), bytes=1
    )
    coordinator.posted.take("stock", 1, [event])
    assert "posted_events_lost" not in names()
    coordinator.posted.take("stock", 3, [event])
    assert "posted_events_lost" in names()


def test_a_poster_that_started_again_and_counts_from_1_is_not_silent(
    coordinator: Coordinator, names: Callable[[], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not register, and says no incarnation: its batches are taken for old ones."""
    for seq in range(1, 20):
        coordinator.posted.take("stock", seq, [])
    for seq in range(1, REPEATS_MIN):
        assert coordinator.posted.take("stock", seq, []) is Taken.DUPLICATE
    assert "posted_events_lost" not in names(), "some are sent twice"
    coordinator.posted.take("stock", REPEATS_MIN, [])
    assert "posted_events_lost" in names(), "and a server that has registered is asked for a listing"
    assert f"{REPEATS_MIN} batches in a row" in caplog.text
    assert "instance=stock" in caplog.text
    assert coordinator.posted.rows == 1
    for _ in range(2 * REPEATS_MIN):
        coordinator.posted.take("stock", 1, [])
    assert coordinator.posted.rows == 2, "it is listed again, at growing distances"
    coordinator.posted.take("stock", 20, [])
    for seq in range(1, REPEATS_MIN):
        coordinator.posted.take("stock", seq, [])
    assert coordinator.posted.rows == 2


def test_objects_that_no_member_deletes_are_shown(coordinator: Coordinator, names: Callable[[], set[str]]) -> None:
    join(coordinator, "one")
    coordinator.quotas.set("a", 0)
    coordinator.take_page(journal("one", 0, shared=True), None)
    for _ in range(3):
        coordinator.eviction.settle()
        coordinator.eviction.run()
        assert "objects_not_deleted" not in names()
    coordinator.eviction.run()
    assert "objects_not_deleted" in names(), "no server asks for them"
    assert coordinator.eviction.deleted.total() == 0
    assert coordinator.eviction.commands("one")
    assert "objects_not_deleted" not in names()
    coordinator.eviction.failed("one", "redis")
    assert "objects_not_deleted" in names()


def test_an_operator_removes_a_server_and_its_id_stays_its_own(coordinator: Coordinator, clock: FakeClock) -> None:
    said = Registration(ip="10.0.0.1", incarnation="1")
    clock.advance(31)  # ids that an earlier coordinator knew are free by now
    _, secret = coordinator.registry.register("one", said, None, True)
    coordinator.take_page(journal("one", 0), secret)
    assert snapshot(coordinator).overview["keys"] == 1
    coordinator.registry.remove("one")
    assert snapshot(coordinator).overview["keys"] == 0
    with pytest.raises(UnknownInstanceError):
        coordinator.registry.remove("one")
    with pytest.raises(InstanceTakenError):
        coordinator.registry.register("one", said, None, True)
    coordinator.registry.register("one", said, secret, True)
    coordinator.registry.remove("one")
    clock.advance(31)
    assert coordinator.registry.register("one", said, None, True)[0] is False


@pytest.mark.parametrize("loop", ["health", "eviction"])
def test_an_interval_of_0_turns_its_loop_off(state: BrittleState, clock: FakeClock, loop: str) -> None:
    coordinator = Coordinator(read_settings([f"--{loop}-check-interval", "0"]), state, LeastRecentlyUsed, clock)
    before = {thread.name for thread in threading.enumerate()}
    coordinator.start()
    try:
        running = {thread.name for thread in threading.enumerate()} - before
    finally:
        coordinator.stop()
    (other,) = {"health", "eviction"} - {loop}
    assert f"coordinator-{loop}" not in running
    assert f"coordinator-{other}" in running


def test_what_members_and_the_environment_keep_secret_is_masked(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_HTTP_TOKEN", "hunter2-of-the-test")
    monkeypatch.setenv("LMCACHE_MP_COORDINATOR_STATE", "redis://user:hunter3-of-the-test@10.0.0.1:6379")
    join(coordinator, "one", password="hunter4-of-the-test")
    text = snapshot(coordinator).model_dump_json() + str(instance_details(coordinator, "one"))
    assert "hunter" not in text
    assert "LMCACHE_HTTP_TOKEN" in text
    assert "10.0.0.1:6379" in text


def test_models_and_salts_that_changed_last_are_found(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for a number of them; new ones are never those that are left out."""
    monkeypatch.setattr(spaces, "SPACES_MAX", 3)
    coordinator.registry.register("one", Registration(incarnation="1"), None, False)
    for first, salt in enumerate(["a", "b", "c", "a", "d", "e"]):
        space = KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16))
        run = Run(Kind.STORE, 0, 10, first.to_bytes(32, "big"))
        page = JournalPage(instance="one", incarnation="1", source="l1", spaces=(space.tail,), first=first, runs=(run,))
        coordinator.take_page(encode(page), None)
    assert [salt for salt in "abcde" if coordinator.journals.spaces.of("m", salt)] == ["a", "d", "e"]
