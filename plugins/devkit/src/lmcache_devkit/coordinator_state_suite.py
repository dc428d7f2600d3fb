"""Conformance checks of a coordinator's state, as tests.  A distribution runs them with two lines:

class TestAcme(CoordinatorStateSuite):
    offer = "acme"

It needs `lmcache-devkit[fleet]`.  Keys that it writes begin with `check-` and are removed, and nothing else is touched.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_fleet.state import KEY_BYTES_MAX, VALUE_BYTES_MAX, CoordinatorState, StateConflictError

LEASE_SECONDS = 2.0
EXPIRY_SECONDS = 8.0
"""Until a lease that was not renewed has surely ended; a state may round up."""
TAKE_SECONDS = 5.0
"""A state that was just opened may refuse a free lease for as long as a lease lasts."""
_KEYS = st.sampled_from(["a", "b", "ab", "b/c", "é%/ \N{SNOWMAN}"])
_VALUES = st.binary(max_size=20)


class CoordinatorStateSuite(OfferSuite):
    kind: ClassVar[str] = "coordinator_state"
    examples: ClassVar[int] = 25
    """Runs of the comparison with a model."""

    @pytest.fixture
    def state(self, under_test: OpenableOffer) -> Iterator[CoordinatorState]:
        state = under_test.open()
        yield state
        state.close()

    @pytest.fixture
    def prefix(self, state: CoordinatorState) -> Iterator[str]:
        prefix = f"check-{secrets.token_hex(8)}/"
        yield prefix
        for key in state.read(prefix).entries:
            state.write(key, None)

    def test_it_is_a_state(self, state: CoordinatorState) -> None:
        assert isinstance(state, CoordinatorState)

    def test_what_was_written_is_read(self, state: CoordinatorState, prefix: str) -> None:
        """Any bytes, under keys of any characters, as large as they may be."""
        longest = prefix + "k" * (KEY_BYTES_MAX - len(prefix))
        values = {
            prefix + "salt": bytes(range(256)),
            prefix + "é \N{SNOWMAN}/%'\"\\": b"{}",
            longest: b"\xff" * VALUE_BYTES_MAX,
        }
        for key, value in values.items():
            state.write(key, value)
        assert _values(state, prefix) == values

    def test_a_prefix_selects(self, state: CoordinatorState, prefix: str) -> None:
        for name in ("a", "a/1", "ab", "b", "A", "a%"):
            state.write(prefix + name, name.encode())
        assert set(_values(state, prefix + "a")) == {prefix + name for name in ("a", "a/1", "ab", "a%")}
        assert _values(state, prefix + "zzz") == {}

    def test_many_keys_are_read_at_once(self, state: CoordinatorState, prefix: str) -> None:
        expected = {f"{prefix}{number:04}": b"x" * 100 for number in range(1_200)}
        for key, value in expected.items():
            state.write(key, value)
        assert _values(state, prefix) == expected

    def test_a_removed_key_is_gone(self, state: CoordinatorState, prefix: str) -> None:
        state.write(prefix + "a", b"1")
        state.write(prefix + "a", None)
        state.write(prefix + "never", None)
        assert _values(state, prefix) == {}

    def test_revisions_grow(self, state: CoordinatorState, prefix: str) -> None:
        """That of the state with each write, a removal included; a reading's is at least that of each of its entries."""
        key = prefix + "a"
        first = state.read(prefix).revision
        seen = [first, *(state.write(key, value) for value in (b"1", b"2", None, b"3"))]
        assert seen == sorted(set(seen)), "each write has a larger revision than the one before"
        reading = state.read(prefix)
        assert reading.entries[key].revision == seen[-1]
        assert reading.revision >= seen[-1]

    def test_a_write_may_depend_on_the_revision(self, state: CoordinatorState, prefix: str) -> None:
        key = prefix + "a"
        with pytest.raises(StateConflictError):
            state.write(key, b"x", 12345)
        first = state.write(key, b"1", 0)
        with pytest.raises(StateConflictError):
            state.write(key, b"x", 0)
        second = state.write(key, b"2", first)
        for value in (b"x", None):
            with pytest.raises(StateConflictError):
                state.write(key, value, first)
        assert _values(state, prefix) == {key: b"2"}
        state.write(key, None, second)
        with pytest.raises(StateConflictError):
            state.write(key, b"x", second)
        assert state.write(key, b"3", 0) > second

    def test_no_increment_of_several_threads_is_lost(self, state: CoordinatorState, prefix: str) -> None:
        key, each = prefix + "count", 15
        state.write(key, b"0")

        def count() -> None:
            done = 0
            while done < each:
                entry = state.read(key).entries[key]
                try:
                    state.write(key, str(int(entry.value) + 1).encode(), entry.revision)
                except StateConflictError:
                    continue
                done += 1

        _together(count, 4)
        assert _values(state, key) == {key: b"60"}

    def test_another_opening_sees_a_write_at_once(
        self, under_test: OpenableOffer, state: CoordinatorState, prefix: str
    ) -> None:
        other = self._another(under_test, state)
        try:
            for number in range(20):
                writer, reader = (state, other) if number % 2 else (other, state)
                writer.write(prefix + "a", str(number).encode())
                assert _values(reader, prefix) == {prefix + "a": str(number).encode()}
        finally:
            other.close()

    def test_a_write_survives_closing(self, under_test: OpenableOffer, state: CoordinatorState, prefix: str) -> None:
        other = self._another(under_test, state)
        revision = other.write(prefix + "a", b"1")
        other.close()
        again = under_test.open()
        entry = again.read(prefix).entries[prefix + "a"]
        again.close()
        assert entry == (b"1", revision)

    def test_it_waits_for_a_change(self, state: CoordinatorState, prefix: str) -> None:
        """One that was made since the revision, too, so that none is missed between reading and waiting."""
        before = state.read(prefix).revision
        state.write(prefix + "a", b"1")
        assert state.wait(prefix, before, 5.0), "it was changed after that revision"
        assert state.wait(prefix, before, 0.0), "it was changed after that revision, and there is nothing to wait for"
        revision = state.read(prefix).revision
        for change in (b"2", None):
            timer = threading.Timer(0.2, state.write, (prefix + "a", change))
            timer.start()
            assert state.wait(prefix, revision, 10.0), "it was changed while it waited"
            timer.join()
            revision = state.read(prefix).revision

    def test_it_waits_no_longer(self, state: CoordinatorState, prefix: str) -> None:
        started = time.monotonic()
        state.wait(prefix, state.read(prefix).revision, 0.3)
        assert time.monotonic() - started < 5.0

    def test_a_lease_has_one_holder(self, state: CoordinatorState, prefix: str) -> None:
        name = prefix + "lease"
        _take(state, name, "a")
        assert not state.acquire(name, "b", LEASE_SECONDS)
        state.release(name, "b")
        assert not state.acquire(name, "b", LEASE_SECONDS), "b cannot give back what it does not have"
        assert state.acquire(name, "a", LEASE_SECONDS), "a renews"
        _take(state, name + "2", "b")
        state.release(name, "a")
        assert state.acquire(name, "b", LEASE_SECONDS)
        state.release(name, "b")
        state.release(name + "2", "b")

    def test_a_lease_that_is_renewed_stays(self, state: CoordinatorState, prefix: str) -> None:
        name = prefix + "lease"
        _take(state, name, "a")
        end = time.monotonic() + 2 * LEASE_SECONDS
        while time.monotonic() < end:
            assert state.acquire(name, "a", LEASE_SECONDS)
            assert not state.acquire(name, "b", LEASE_SECONDS)
            time.sleep(LEASE_SECONDS / 5)
        state.release(name, "a")

    def test_a_lease_that_is_not_renewed_ends(self, state: CoordinatorState, prefix: str) -> None:
        name = prefix + "lease"
        taken_at = _take(state, name, "a")
        while not state.acquire(name, "b", LEASE_SECONDS):
            assert time.monotonic() - taken_at < EXPIRY_SECONDS
            time.sleep(0.05)
        assert time.monotonic() - taken_at >= LEASE_SECONDS - 0.1, "it ended too early"
        assert not state.acquire(name, "a", LEASE_SECONDS)
        state.release(name, "b")

    def test_one_of_several_gets_a_lease(self, state: CoordinatorState, prefix: str) -> None:
        name, got = prefix + "lease", []
        _take(state, name, "first")
        state.release(name, "first")

        def take() -> None:
            holder = secrets.token_hex(8)
            if state.acquire(name, holder, LEASE_SECONDS):
                got.append(holder)

        _together(take, 6)
        assert len(got) == 1
        state.release(name, got[0])

    def test_a_lease_is_not_among_the_entries(self, state: CoordinatorState, prefix: str) -> None:
        _take(state, prefix + "lease", "a")
        assert _values(state, prefix) == {}
        state.release(prefix + "lease", "a")

    def test_it_is_what_a_model_of_it_is(self, under_test: OpenableOffer) -> None:
        """Any calls in any order, by two openings where there can be two, against a dictionary."""
        opened = [under_test.open()]
        if opened[0].durable:
            opened.append(under_test.open())

        class AgainstModel(_AgainstModel):
            states = opened

        try:
            run_state_machine_as_test(
                AgainstModel,
                settings=settings(
                    max_examples=self.examples,
                    stateful_step_count=25,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    database=None,
                ),
            )
        finally:
            for each in opened:
                each.close()

    def _another(self, under_test: OpenableOffer, state: CoordinatorState) -> CoordinatorState:
        if not state.durable:
            pytest.skip("each opening has entries of its own")
        other: CoordinatorState = under_test.open()
        return other


class _AgainstModel(RuleBasedStateMachine):
    states: ClassVar[list[CoordinatorState]] = []

    @initialize()
    def begin(self) -> None:
        self.prefix = f"check-{secrets.token_hex(8)}/"
        self.model: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.last = 0

    @rule(
        which=st.integers(0, 1), key=_KEYS, value=_VALUES | st.none(), expects=st.sampled_from(["any", "own", "wrong"])
    )
    def write(self, which: int, key: str, value: bytes | None, expects: str) -> None:
        state = self.states[which % len(self.states)]
        now = self.revisions.get(key, 0)
        if expects == "wrong":
            with pytest.raises(StateConflictError):
                state.write(self.prefix + key, value, now + 1 if now == 0 else 0)
            return
        revision = state.write(self.prefix + key, value, now if expects == "own" else None)
        assert revision > self.last or (value is None and key not in self.model)
        self.last = max(self.last, revision)
        if value is None:
            self.model.pop(key, None)
            self.revisions.pop(key, None)
        else:
            self.model[key], self.revisions[key] = value, revision

    @rule(which=st.integers(0, 1), start=_KEYS)
    def read_part(self, which: int, start: str) -> None:
        found = _values(self.states[which % len(self.states)], self.prefix + start)
        assert found == {self.prefix + key: value for key, value in self.model.items() if key.startswith(start)}

    @invariant()
    def reads_what_was_written(self) -> None:
        if not hasattr(self, "prefix"):
            return
        for state in self.states:
            reading = state.read(self.prefix)
            assert {key.removeprefix(self.prefix): each.value for key, each in reading.entries.items()} == self.model
            assert {
                key.removeprefix(self.prefix): each.revision for key, each in reading.entries.items()
            } == self.revisions
            assert reading.revision >= self.last

    def teardown(self) -> None:
        for key in self.states[0].read(self.prefix).entries if hasattr(self, "prefix") else ():
            self.states[0].write(key, None)


def _values(state: CoordinatorState, prefix: str) -> Mapping[str, bytes]:
    return {key: each.value for key, each in state.read(prefix).entries.items()}


def _take(state: CoordinatorState, name: str, holder: str) -> float:
    """Returns when it was asked for with success."""
    end = time.monotonic() + TAKE_SECONDS
    while True:
        asked_at = time.monotonic()
        if state.acquire(name, holder, LEASE_SECONDS):
            return asked_at
        assert asked_at < end, "a lease that no holder has is not given"
        time.sleep(0.05)


def _together(work: Callable[[], None], count: int) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by the thread of the test
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, f"on another thread: {failed[0]!r}"
