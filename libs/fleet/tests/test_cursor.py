"""Whatever is lost, doubled, delayed or sent again: what a coordinator knows of a source converges to what the source has."""

from __future__ import annotations

import random
from collections import deque
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_client.errors import ProtocolError
from lmcache_core import HashChain, KeySpace
from lmcache_fleet.cursor import Cursor, Doing
from lmcache_fleet.messages import (
    HASH_BYTES,
    PAGE_KEYS_MAX,
    JournalPage,
    Kind,
    Page,
    Reply,
    Run,
    SnapshotPage,
    decode_page,
    decode_reply,
    encode,
    split_pages,
)

SPACE = KeySpace("m", 0, 0, "salt", 256, HashChain.BLAKE3, bytes(16))


def key(number: int) -> bytes:
    return blake2b(number.to_bytes(4, "little"), digest_size=HASH_BYTES).digest()


class Source:
    """A member's side: what it has, a journal of its last changes, and snapshots that are made while it changes."""

    def __init__(self, kept: int) -> None:
        self.has: set[int] = set()
        self.journal: deque[tuple[int, Kind, int]] = deque(maxlen=kept)
        self.end = 0
        self.snapshots = 0
        self.slots: list[int | None] = [None] * 40

    def change(self, chooser: random.Random) -> None:
        slot = chooser.randrange(len(self.slots))
        before, new = self.slots[slot], chooser.randrange(60)
        if before is not None:
            self._note(Kind.DELETE, before)
            self.has.discard(before)
            self.slots[slot] = None
        elif new not in self.has:
            self._note(Kind.STORE, new)
            self.has.add(new)
            self.slots[slot] = new

    def _note(self, kind: Kind, number: int) -> None:
        self.journal.append((self.end, kind, number))
        self.end += 1

    def journal_page(self, first: int, limit: int) -> JournalPage | None:
        """None: it does not go back that far."""
        oldest = self.journal[0][0] if self.journal else self.end
        if first < oldest:
            return None
        changes = [each for each in self.journal if each[0] >= first][:limit]
        runs = tuple(Run(kind, 0, 100, key(number)) for _, kind, number in changes)
        return JournalPage(instance="i", incarnation="1", source="l1", spaces=(SPACE.tail,), runs=runs, first=first)

    def snapshot_page(self, snapshot: int, begins_at: int, number: int, width: int) -> SnapshotPage:
        slots = self.slots[number * width : (number + 1) * width]
        runs = tuple(Run(Kind.STORE, 0, 100, key(each)) for each in slots if each is not None)
        return SnapshotPage(
            instance="i",
            incarnation="1",
            source="l1",
            spaces=(SPACE.tail,),
            runs=runs,
            snapshot=snapshot,
            begins_at=begins_at,
            page=number,
            last=(number + 1) * width >= len(self.slots),
        )


class Known:
    """A coordinator's side."""

    def __init__(self) -> None:
        self.cursor = Cursor()
        self.shown: set[bytes] = set()
        self.building: set[bytes] = set()

    def take(self, page: JournalPage | SnapshotPage) -> None:
        step = self.cursor.journal(page) if isinstance(page, JournalPage) else self.cursor.snapshot(page)
        match step.doing:
            case Doing.APPLY:
                self._apply(self.shown, page, step.skip)
            case Doing.BEGIN:
                self.building = set()
                self._apply(self.building, page)
            case Doing.ADD:
                self._apply(self.building, page)
            case Doing.COMPLETE:
                self._apply(self.building, page)
                self.shown = self.building
            case Doing.WHOLE:
                self.building = set()
                self._apply(self.building, page)
                self.shown = self.building
            case Doing.GAP | Doing.NOTHING:
                pass

    @staticmethod
    def _apply(to: set[bytes], page: Page, skip: int = 0) -> None:
        changes = [(run.kind, chunk_hash) for run in page.runs for chunk_hash in run.split()]
        for kind, chunk_hash in changes[skip:]:
            if kind is Kind.STORE:
                to.add(chunk_hash)
            else:
                to.discard(chunk_hash)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kept=st.sampled_from([3, 20, 1000]),
    loss=st.sampled_from([0.0, 0.3, 0.7]),
    width=st.sampled_from([7, 40]),
)
def test_what_is_known_converges_whatever_happens_to_messages(seed: int, kept: int, loss: float, width: int) -> None:
    chooser = random.Random(seed)
    source, known = Source(kept), Known()
    under_way: list[JournalPage | SnapshotPage] = []

    def send(page: JournalPage | SnapshotPage) -> None:
        if chooser.random() < loss:
            return
        under_way.append(page)
        if chooser.random() < loss / 2:
            under_way.append(page)

    def deliver(in_order: bool) -> None:
        while under_way:
            page = under_way.pop(0 if in_order else chooser.randrange(len(under_way)))
            known.take(decode_page(encode(page)))
            if not in_order and chooser.random() < 0.3:
                return

    def talk(changing: bool) -> None:
        """One round of a member: what the last reply asks for."""
        expected = known.cursor.next
        page = source.journal_page(expected or 0, chooser.choice([1, 5, 1000]))
        if page is not None:
            send(page)
            return
        source.snapshots += 1
        begins_at = source.end
        for number in range(-(-len(source.slots) // width)):
            send(source.snapshot_page(source.snapshots, begins_at, number, width))
            if changing:
                source.change(chooser)

    for _ in range(40):
        for _ in range(chooser.randrange(8)):
            source.change(chooser)
        talk(changing=True)
        deliver(in_order=loss == 0)
    loss = 0
    deliver(in_order=True)
    for _ in range(source.end + 3):
        if known.cursor.next == source.end:
            break
        talk(changing=False)
        deliver(in_order=True)
    assert known.cursor.next == source.end
    assert known.shown == {key(number) for number in source.has}


def test_an_empty_page_says_that_something_is_missing() -> None:
    cursor = Cursor()
    page = JournalPage(instance="i", incarnation="1", source="l1", first=7)
    assert cursor.journal(page).doing is Doing.GAP
    assert cursor.next is None
    assert cursor.gaps == 1


def test_a_page_is_read_as_it_was_written() -> None:
    runs = (Run(Kind.STORE, 0, 4096, key(1) + key(2)), Run(Kind.DELETE, 0, 4096, key(3)))
    page = JournalPage(instance="i", incarnation="1", source="l1", spaces=(SPACE.tail,), runs=runs, first=5)
    again = decode_page(encode(page))
    assert again == page
    assert (again.keys, again.key_spaces) == (3, (SPACE,))
    assert [each.chunk_hash for each in again.objects(again.runs[0])] == [key(1), key(2)]
    assert decode_reply(encode(Reply({"l1": 8}))) == Reply({"l1": 8})


@pytest.mark.parametrize(
    ("runs", "spaces", "message"),
    [
        ((Run(Kind.STORE, 1, 1, key(1)),), (SPACE.tail,), "there is no space 1"),
        ((Run(Kind.STORE, 0, 1, key(1)[:31]),), (SPACE.tail,), "31 bytes of hashes"),
        ((Run(Kind.STORE, 0, 1, b""),), (SPACE.tail,), "0 bytes of hashes"),
        ((Run(Kind.STORE, 0, 1, key(1) * (PAGE_KEYS_MAX + 1)),), (SPACE.tail,), "65537 keys"),
        ((), (b"\xff\xff",), "not a canonical object key"),
        ((Run(Kind.STORE, 0, -1, key(1)),), (SPACE.tail,), "Expected `int` >= 0"),
    ],
)
def test_a_page_that_cannot_be_is_refused_whole(runs: tuple[Run, ...], spaces: tuple[bytes, ...], message: str) -> None:
    page = JournalPage(instance="i", incarnation="1", source="l1", spaces=spaces, runs=runs, first=0)
    with pytest.raises(ProtocolError, match=message):
        decode_page(encode(page))


@settings(max_examples=300)
@given(data=st.binary(max_size=300), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_bytes_of_an_enemy_are_read_or_refused(data: bytes, at: int, byte: int) -> None:
    whole = bytearray(
        encode(
            JournalPage(
                instance="i",
                incarnation="1",
                source="l1",
                spaces=(SPACE.tail,),
                runs=(Run(Kind.STORE, 0, 1, key(1)),),
                first=0,
            )
        )
    )
    whole[at % len(whole)] = byte
    for message in (data, bytes(whole), bytes(whole[: at % len(whole)])):
        try:
            page = decode_page(message)
        except ProtocolError:
            continue
        assert page.keys <= PAGE_KEYS_MAX


@given(lengths=st.lists(st.integers(1, 20), max_size=8), limit=st.integers(1, 15))
def test_pages_are_cut_without_losing_or_reordering_a_key(lengths: list[int], limit: int) -> None:
    runs, number = [], 0
    for at, length in enumerate(lengths):
        hashes = b"".join(key(number + each) for each in range(length))
        number += length
        runs.append(Run(Kind.STORE, 0, at, hashes))
    pages = list(split_pages(runs, limit))
    assert all(sum(run.keys for run in page) <= limit for page in pages)
    joined = b"".join(run.hashes for page in pages for run in page)
    assert joined == b"".join(run.hashes for run in runs)
