"""Owners that do what they should not: each has its outcome, its count and its line in the log, and no wrong byte is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from lmcache_core import Outcome
from lmcache_p2p import peer as peer_module
from lmcache_p2p.coordinators import Member
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.messages import NO_TASK, PeerAddress
from plugins.p2p.tests.rig import SILENT, ReaderRig, ScriptedOwner, Twice, key_of, wait

DONE, MISSING = Outcome.DONE, Outcome.MISSING
Logged = Callable[[str], bool]


@pytest.fixture
def owner() -> Iterator[ScriptedOwner]:
    with ScriptedOwner() as owner:
        yield owner


@pytest.fixture
def rig(owner: ScriptedOwner) -> Iterator[ReaderRig]:
    with ReaderRig(owner, lookup_timeout=1.0) as rig:
        yield rig


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    caplog.set_level("INFO")
    return lambda text: text in caplog.text


def test_one_that_does_everything_right(owner: ScriptedOwner, rig: ReaderRig) -> None:
    assert rig.lookup(0, 1, 99, 2) == [DONE, DONE, MISSING, DONE]
    assert rig.load(0, 1, 2) == [DONE, DONE, DONE]
    rig.unpin(0, 1)
    rig.unpin(2)
    wait(lambda: owner.asked.count("end"))
    assert rig.lookup(99) == [MISSING]
    assert owner.asked.count("end") == 1, "once"
    counts = rig.counts()
    assert (counts["asked"], counts["leased"], counts["stale"], counts["read"]) == (5, 3, 2, 3)
    assert rig.directory.asked == 2


def test_one_that_says_it_has_what_it_has_not(owner: ScriptedOwner, rig: ReaderRig, logged: Logged) -> None:
    """The address of another object, three times: it is not asked any more."""
    other = owner.objects[key_of(7)]
    owner.script["query_lookup_results"] = lambda _, right: [PeerAddress(other.offset, other.length)] * len(right)
    owner.script["lookup_and_lock"] = lambda arguments, right: owner._lookup_and_lock(
        [msgspec.structs.replace(arguments[0][0], chunk_hash=key_of(7).chunk_hash)], {}
    )
    for number in range(3):
        assert rig.lookup(number) == [DONE]
        assert rig.load(number) == [Outcome.FOREIGN]
    assert rig.counts()["damaged"] == 3
    assert logged("a peer is not asked for 60 s peer=owner reason=3 damaged objects within a minute")
    assert rig.lookup(4) == [MISSING]


def test_one_whose_bytes_are_altered(owner: ScriptedOwner, rig: ReaderRig) -> None:
    owner.objects[key_of(3)].view[5000] ^= 1
    assert rig.lookup(2, 3) == [DONE, DONE]
    assert rig.load(2, 3) == [DONE, Outcome.DAMAGED]
    assert rig.counts()["damaged"] == 1


def test_an_address_that_the_lease_does_not_cover(owner: ScriptedOwner, rig: ReaderRig) -> None:
    owner.script["query_lookup_results"] = lambda _, right: [PeerAddress(1 << 22, each.size) for each in right]
    assert rig.lookup(0) == [DONE]
    assert rig.load(0) == [Outcome.FAILED]


@pytest.mark.parametrize("address", [PeerAddress(2**62, 2**62), PeerAddress(0, 10**18), PeerAddress(0, 100)])
def test_an_address_of_another_length(owner: ScriptedOwner, rig: ReaderRig, address: PeerAddress) -> None:
    """It cannot be what is wanted here, is not read, and is counted."""
    owner.script["query_lookup_results"] = lambda _, right: [address]
    assert rig.lookup(0) == [DONE]
    assert rig.load(0) == [Outcome.DAMAGED]
    assert rig.counts()["damaged"] == 1


@pytest.mark.parametrize("silent", ["hello", "lookup_and_lock", "query_lookup_results"])
def test_one_that_does_not_answer(owner: ScriptedOwner, rig: ReaderRig, logged: Logged, silent: str) -> None:
    owner.script[silent] = lambda _, right: SILENT
    assert rig.lookup(0) == [MISSING]
    wait(lambda: logged("a peer is not asked for 2 s peer=owner reason=no answer to p2p_"))
    assert rig.counts()["late"] == 1
    assert rig.lookup(0) == [MISSING]
    assert owner.asked.count(silent) == 1, "it is left alone for a while"


def test_one_that_never_has_the_results(owner: ScriptedOwner, rig: ReaderRig, logged: Logged) -> None:
    owner.script["query_lookup_results"] = lambda _, right: None
    assert rig.lookup(0) == [MISSING]
    said = ("reason=its lookup took too long", "reason=no answer to p2p_query_lookup_results")
    wait(lambda: any(map(logged, said)))


def test_one_that_answers_twice(owner: ScriptedOwner, rig: ReaderRig) -> None:
    owner.script["lookup_and_lock"] = lambda _, right: Twice(right)
    owner.script["query_lookup_results"] = lambda _, right: Twice(right)
    assert rig.lookup(0, 1) == [DONE, DONE]
    assert rig.load(0, 1) == [DONE, DONE]
    wait(lambda: rig.counts()["unasked"] == 2)


@pytest.mark.parametrize("change", [lambda right: right[:-1], lambda right: right * 2, lambda right: []])
def test_one_that_sends_too_little_or_too_much(
    owner: ScriptedOwner, rig: ReaderRig, logged: Logged, change: Callable[[Any], Any]
) -> None:
    owner.script["query_lookup_results"] = lambda _, right: change(right)
    assert rig.lookup(0, 1) == [MISSING, MISSING]
    assert rig.counts()["bad"] == 1
    assert logged("addresses of 2 objects")


@pytest.mark.parametrize("said", ["text", [1, 2], {"offset": 1}, [{"offset": "a", "size": 1}]])
def test_one_that_answers_something_else(owner: ScriptedOwner, rig: ReaderRig, said: Any) -> None:
    owner.script["query_lookup_results"] = lambda _, right: said
    assert rig.lookup(0) == [MISSING]
    assert rig.counts()["bad"] == 1


def test_one_that_refuses_while_it_owes_an_answer_is_asked_again(owner: ScriptedOwner, rig: ReaderRig) -> None:
    """It has forgotten the session and both requests, and is not late."""
    held: list[Any] = []

    def hold(_: Any, right: Any) -> Any:
        held.append(right)
        return SILENT

    owner.script["query_lookup_results"] = hold
    owner.script["lookup_and_lock"] = lambda arguments, right: NO_TASK if held else right
    found: list[list[Outcome]] = []
    waiting = threading.Thread(target=lambda: found.append(rig.lookup(0)))
    waiting.start()
    wait(lambda: held)
    assert rig.lookup(1) == [MISSING]
    waiting.join(20)
    assert found == [[MISSING]]
    owner.script.clear()
    assert rig.lookup(2) == [DONE]
    assert rig.counts()["late"] == 0


def test_one_that_refuses_a_lookup(owner: ScriptedOwner, rig: ReaderRig) -> None:
    owner.script["lookup_and_lock"] = lambda _, right: NO_TASK
    assert rig.lookup(0) == [MISSING]
    assert rig.counts()["refused"] == 1


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", 2, "version is 2 there and 1 here"),
        ("chunk_tokens", 256, "chunk_tokens is 256 there and 16 here"),
        ("chain", "sha256_cbor", "chain is sha256_cbor there and blake3 here"),
        ("test_vector", "cd", "test_vector is cd there and ab here"),
        ("instance", "another", "it says it is another"),
        ("refused", "full", "it refuses this server: full"),
        ("channels", {"ferry": b""}, "no transfer channel of tcp works with it"),
        ("channels", {"tcp": b"\xc1"}, "no transfer channel of tcp works with it"),
        ("secret", b"", "it refuses this server: no secret"),
    ],
)
def test_one_that_does_not_fit(
    owner: ScriptedOwner, rig: ReaderRig, logged: Logged, field: str, value: Any, said: str
) -> None:
    owner.script["hello"] = lambda _, right: msgspec.structs.replace(right, **{field: value})
    assert rig.lookup(0) == [MISSING]
    assert logged(f"reason={said}")
    assert "lookup_and_lock" not in owner.asked


def test_one_that_changes_its_boot_id(
    owner: ScriptedOwner, rig: ReaderRig, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one key pair there is one start: it is another server now."""
    monkeypatch.setattr(peer_module, "QUIET_SECONDS", 0.0)
    assert rig.lookup(0) == [DONE]
    owner.script["hello"] = lambda _, right: msgspec.structs.replace(right, boot_id="another")
    (peer,) = rig.reader.peers
    rig.reader.loop.call_soon_threadsafe(peer.failed, "cut off", 0.0)
    wait(lambda: not peer.session)
    assert rig.lookup(0) == [MISSING]
    assert logged("boot_id is another there and was owner before")


def test_what_one_owner_fails_is_read_from_the_next(owner: ScriptedOwner) -> None:
    with ScriptedOwner("second") as second, ReaderRig(owner, second) as rig:
        owner.objects[key_of(0)].view[5000] ^= 1
        assert rig.lookup(0, 1) == [DONE, DONE]
        assert "hello" not in second.asked, "one owner has both"
        assert rig.load(0, 1) == [DONE, DONE]
        assert (rig.counts("owner")["damaged"], rig.counts("second")["read"]) == (1, 1)
        wait(lambda: second.asked.count("end") == 1)


def test_a_lease_that_cannot_be_renewed_ends_the_load(owner: ScriptedOwner) -> None:
    """MISSING comes before the lease's end, and the buffers are released."""
    with ReaderRig(owner, lease_seconds=1.0) as rig:
        assert rig.lookup(0) == [DONE]
        owner.script["renew"] = lambda _, right: False
        time.sleep(1.2)
        owner.script["lookup_and_lock"] = lambda _, right: NO_TASK
        assert rig.load(0) == [MISSING]


def test_a_lease_is_renewed_as_long_as_it_is_pinned(owner: ScriptedOwner) -> None:
    with ReaderRig(owner, lease_seconds=1.0) as rig:
        assert rig.lookup(0) == [DONE]
        wait(lambda: owner.asked.count("renew") >= 4)
        assert rig.load(0) == [DONE]
        assert owner.asked.count("lookup_and_lock") == 1, "it lives"


def test_what_is_leased_anew_for_a_load_is_released_after_it(owner: ScriptedOwner) -> None:
    """Because the lease of the lookup was lost."""
    with ReaderRig(owner, lease_seconds=1.0) as rig:
        assert rig.lookup(0) == [DONE]
        owner.script["renew"] = lambda _, right: False
        time.sleep(1.2)
        assert rig.load(0) == [DONE]
        wait(lambda: owner.asked.count("end") == 1)
        assert rig.reader.status()["leases"] == 0


def test_a_lease_of_a_session_before_is_not_used(owner: ScriptedOwner, rig: ReaderRig) -> None:
    """Its secrets are not those of the owner now."""
    assert rig.lookup(0) == [DONE]
    (peer,) = rig.reader.peers
    rig.reader.loop.call_soon_threadsafe(peer.failed, "cut off", 0.0)
    owner.session = b"t" * 32
    wait(lambda: not peer.session)
    assert rig.lookup(1) == [DONE]
    assert rig.load(0, 1) == [DONE, DONE]
    assert owner.asked.count("lookup_and_lock") == 3, "the first is leased anew"


def test_an_owner_on_this_machine_comes_first(owner: ScriptedOwner, rig: ReaderRig) -> None:
    """Also where another one has more; among others, who has the longest run does."""
    here = owner.member
    far, farther = (Member(name, PeerUrl("tcp://10.9.9.9:1", KeyPair.new().public)) for name in ("far", "farther"))
    wait(lambda: rig.reader.lessee.context)

    def asked(*owners: tuple[Member, ...]) -> list[tuple[str, list[int]]]:
        count = len(owners)
        return [
            (peer.name, places)
            for peer, places in rig.reader.lessee._shares(owners, [None] * count, [set() for _ in range(count)], 4)
        ]

    assert asked((far, here), (far,), (far, here)) == [("owner", [0, 2]), ("far", [1])]
    assert asked((far,), (far, farther), (here,), (farther,)) == [("owner", [2]), ("far", [0, 1]), ("farther", [3])]
