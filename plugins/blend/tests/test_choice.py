"""Which of overlapping matches win, and what the answer says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lmcache_blend.choice import answer_of, choose, joined, leaves_room
from lmcache_blend_index import Match, link

SIZE = 4
OWN = [bytes([number]) * 32 for number in range(1, 7)]


def match(start: int, name: int, parent: int = 0, *, place: int = 0, missed: bool = False) -> Match:
    return Match(start, bytes([name]) * 32, place, link(bytes([parent]) * 32) if parent else 0, name, missed)


def test_of_matches_that_overlap_the_leftmost_wins() -> None:
    first, second, third = match(1, 101), match(3, 102), match(5, 103)
    assert choose([first, second, third], OWN, SIZE) == [first, third]


def test_matches_that_go_on_a_chain_win() -> None:
    lone, begin, end = match(1, 101), match(3, 102), match(7, 103, 102)
    assert choose([lone, begin, end], OWN, SIZE) == [begin, end]


def test_of_equal_tokens_those_that_go_on_what_was_taken_win() -> None:
    begin, other, next_one = match(1, 101), match(5, 102), match(5, 103, 101)
    for order in ([begin, other, next_one], [begin, next_one, other]):
        assert choose(order, OWN, SIZE) == [begin, next_one]
    tail = match(9, 104, 102)
    assert choose([begin, other, next_one, tail], OWN, SIZE) == [begin, next_one, tail]


def test_what_was_not_there_comes_last() -> None:
    missed, later = match(1, 101, missed=True), match(3, 102)
    assert choose([missed, later], OWN, SIZE) == [later]
    assert choose([missed], OWN, SIZE) == [missed]


def test_own_chunks_are_not_asked_for_twice_and_keep_their_places() -> None:
    own, over, beside = match(4, 2, 1, place=1), match(6, 101), match(9, 102)
    assert choose([own, over, beside], OWN, SIZE) == [beside]
    missed = own._replace(is_missed=True)
    assert choose([missed, over, beside], OWN, SIZE) == [over]
    assert choose([own._replace(start=5)], OWN, SIZE) == [own._replace(start=5)], "elsewhere it is not its own"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(100, 110), st.integers(100, 110), st.booleans()), max_size=30),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 10)),
    st.integers(0, 24),
)
def test_segments_are_disjoint_ascending_behind_the_prefix_and_there(
    drawn: Sequence[tuple[int, int, int, bool]], own: set[int], there: set[int], end: int
) -> None:
    matches = sorted({match(start, name, parent, missed=missed) for start, name, parent, missed in drawn})
    chosen = choose(matches, OWN, SIZE)
    assert chosen == sorted(set(chosen) & set(matches))
    assert all(later.start - each.start >= SIZE for each, later in pairwise(chosen))
    for each in matches:  # nothing that fits is left out
        assert any(abs(each.start - other.start) < SIZE for other in chosen)
    answer, unused = answer_of(OWN, chosen, SIZE, end, own.__contains__, there.__contains__)
    prefix = answer.prefix_tokens // SIZE
    assert set(range(prefix)) <= own
    assert prefix not in own
    last = answer.prefix_tokens
    for segment in answer.segments:
        assert last <= segment.start == segment.end - SIZE
        last = segment.end
        if segment.exact:
            assert segment.start == segment.old_start
            assert segment.start // SIZE in own
            assert segment.end <= end
    moved = {(each.start, each.hash) for each in answer.segments if not each.exact}
    given = {(each.start, each.hash) for at, each in enumerate(chosen) if at in there and at not in unused}
    assert moved == given


def test_segments_follow_where_prompt_and_chain_go_on() -> None:
    chosen = [match(9, 101), match(13, 102, 101, place=1), match(17, 103, 101, place=1)]
    answer, _ = answer_of(OWN[:2], chosen, SIZE, 21, lambda at: at < 2, lambda at: True)
    assert [(each.old_start, each.start, each.follows) for each in answer.segments] == [
        (0, 9, False),
        (4, 13, True),
        (4, 17, False),
    ]


def test_matches_of_other_servers_have_the_places_that_none_here_has() -> None:
    def of(start: int, name: bytes, *, is_missed: bool = False, entry: int = 0) -> Match:
        return Match(start, name * 32, 1, 0, entry, is_missed)

    local = [
        of(0, b"a", entry=1),
        of(20, b"b", entry=2, is_missed=True),
        of(40, b"c", entry=3, is_missed=True),
    ]
    others = [of(0, b"a"), of(3, b"d"), of(4, b"e"), of(16, b"o"), of(20, b"b"), of(41, b"f")]
    own = [b"x" * 32] * 4 + [b"o" * 32]
    assert joined(local, others, own, 4) == [
        of(0, b"a", entry=1),
        of(4, b"e"),
        of(20, b"b", entry=2),  # it was not there, and another server has it
        of(40, b"c", entry=3, is_missed=True),
        of(41, b"f"),
    ]


def test_room_is_a_window_that_nothing_here_overlaps() -> None:
    assert leaves_room([], SIZE, SIZE)
    assert not leaves_room([], SIZE - 1, SIZE)
    assert not leaves_room([match(3, 101), match(9, 102)], 16, SIZE)
    assert leaves_room([match(3, 101), match(11, 102)], 16, SIZE)
    assert leaves_room([match(3, 101), match(7, 102, missed=True)], 12, SIZE)
    assert leaves_room([match(3, 101), match(9, 102)], 17, SIZE)
