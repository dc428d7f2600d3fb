"""The ring of a residency feed: what was recorded is read in order, from any number on, until it is overrun."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core.contracts.residency import ChangeKind, Changes, Overrun
from lmcache_core.l1.journal import Journal
from lmcache_core.model.keys import HASH_BYTES, HashChain, KeySpace

SPACE = KeySpace("m", 0, 0, "", 256, HashChain.BLAKE3, bytes(16))


def name(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "little")


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 9), max_size=60),
    keys_max=st.sampled_from([1, 7, 40, 10_000]),
    limit=st.sampled_from([1, 5, 1000]),
    back=st.integers(0, 100),
)
def test_what_is_kept_is_read_from_any_number_on(lengths: list[int], keys_max: int, limit: int, back: int) -> None:
    journal = Journal(keys_max)
    journal.open()
    begin = journal.end
    for length in lengths:
        hashes = b"".join(name(journal.end + each) for each in range(length))
        journal.record(ChangeKind.STORE, SPACE, 1, hashes)
    number = max(begin, journal.end - back)
    while number < journal.end:
        part = journal.read(number, limit)
        if isinstance(part, Overrun):
            assert part.first > number
            assert journal.end - number > keys_max, "what must be kept is gone"
            number = part.first
            continue
        assert part.first == number
        joined = b"".join(change.hashes for change in part.changes)
        assert joined == b"".join(name(each) for each in range(number, number + len(joined) // HASH_BYTES))
        assert 1 <= len(joined) // HASH_BYTES <= limit
        number += len(joined) // HASH_BYTES
    assert journal.read(journal.end, limit) == Changes(journal.end, [])


def test_a_reader_that_comes_back_learns_that_it_missed_something() -> None:
    journal = Journal()
    journal.open()
    journal.record(ChangeKind.STORE, SPACE, 1, name(1))
    end = journal.end
    journal.close()
    journal.open()
    assert isinstance(journal.read(end, 10), Overrun)
    assert isinstance(journal.read(journal.end + 1, 10), Overrun)


def test_it_stays_small_however_much_is_recorded() -> None:
    journal = Journal(100)
    journal.open()
    for number in range(50_000):
        journal.record(ChangeKind.DELETE, SPACE, 1, name(number))
    assert len(journal._runs) < 5000


def test_a_record_frees_few_runs_and_later_ones_the_rest() -> None:
    journal = Journal(10_000)
    journal.open()
    for number in range(10_000):
        journal.record(ChangeKind.STORE, SPACE, 1, name(number))

    def kept() -> int:
        return sum(run is not None for run in journal._runs)

    before = kept()
    journal.record(ChangeKind.STORE, SPACE, 1, bytes(HASH_BYTES * 10_000))
    assert before - 1024 <= kept() < before, "it has L1's lock"
    for number in range(20):
        journal.record(ChangeKind.STORE, SPACE, 1, name(number))
    assert kept() == 21
