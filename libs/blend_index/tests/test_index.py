"""Both implementations of the index against a dictionary, with hashes that collide, in two spaces and within a bound."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from types import ModuleType
from typing import Literal

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_blend_index import ALIKE_MAX, MATCHES_MAX, ChunkIndex, Match, link
from lmcache_blend_index.index import choose

Native = Literal["off", "on"]
IMPLEMENTATIONS: tuple[Native, ...] = ("off", "on") if choose("auto").native else ("off",)
LENGTH = 2
CHUNKS_MAX = 6
SPACES = ("salt a", "salt b")
SPACE = st.sampled_from(SPACES)
TOKENS = st.lists(st.integers(0, 1), min_size=LENGTH, max_size=LENGTH)


def chunk_hash(name: object) -> bytes:
    return sha256(repr(name).encode()).digest()


class IndexMachine(RuleBasedStateMachine):
    """The model: by space, tokens and hash the place and whether it was missed, in the order in which they leave.  All
    implementations do the same."""

    @initialize(multiplier=st.sampled_from([None, 0, 1, 2**61 - 2]), keyed=st.booleans())
    def open(self, multiplier: int | None, keyed: bool) -> None:
        """With 0 the last token is the whole hash, with 1 their sum.  Spaces without keys have the same hashes."""
        self.indexes = [ChunkIndex(LENGTH, CHUNKS_MAX, multiplier, native) for native in IMPLEMENTATIONS]
        if not keyed:
            for index in self.indexes:
                index._space_keys, index._space_counts = [0, 0, 0], [0, 0, 0]
                index._free_spaces = [2, 1]
        self.model: OrderedDict[tuple[str, tuple[int, ...], bytes], tuple[int, bool]] = OrderedDict()
        self.clock = count()
        self.born: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        """When each was added last."""

    @rule(space=SPACE, tokens=TOKENS, place=st.integers(0, 3))
    def add(self, space: str, tokens: list[int], place: int) -> None:
        key = space, tuple(tokens), chunk_hash((tokens, place))
        is_new = key not in self.model
        for index in self.indexes:
            assert index.add(space, tokens, key[2], place, link(chunk_hash(place))) is is_new
        if not is_new:
            self.model[key] = place, False
            self.model.move_to_end(key)
            return
        alike = [each for each in self.model if each[:2] == key[:2]]
        if len(alike) == ALIKE_MAX:
            missed = [each for each in alike if self.model[each][1]]
            candidates = missed or alike
            # Of two that were missed, the one that was added last; otherwise the one that was added first.
            pick = max if missed else min
            del self.model[pick(candidates, key=self.born.__getitem__)]
        elif len(self.model) == CHUNKS_MAX:
            self.model.popitem(last=False)
        self.model[key] = place, False
        self.born[key] = next(self.clock)

    @rule(space=SPACE, prompt=st.lists(st.integers(0, 1), max_size=24), stride=st.sampled_from([1, 1, 3, 4, 7]))
    def match(self, space: str, prompt: list[int], stride: int) -> None:
        found, *others = [index.match(space, prompt, stride) for index in self.indexes]
        assert all(other == found for other in others)
        assert {(each.start, each.hash, each.place, each.is_missed) for each in found} == self.expected(
            space, prompt, stride
        )
        assert len(found) == len(set(found))
        assert [each.start for each in found] == sorted(each.start for each in found)
        for each in found:
            assert each.parent == link(chunk_hash(each.place))
            for index in self.indexes:
                assert index.find(space, prompt[each.start : each.start + LENGTH], each.hash) == each._replace(start=0)

    @rule(space=SPACE, prompt=st.lists(st.integers(0, 1), min_size=LENGTH, max_size=6), is_there=st.booleans())
    def note(self, space: str, prompt: list[int], is_there: bool) -> None:
        for each in self.indexes[0].match(space, prompt):
            for index in self.indexes:
                index.note(each, is_there=is_there)
            key = space, tuple(prompt[each.start : each.start + LENGTH]), each.hash
            self.model[key] = self.model[key][0], not is_there
            self.model.move_to_end(key, last=is_there)

    @invariant()
    def it_is_as_large_as_the_model(self) -> None:
        for index in getattr(self, "indexes", ()):
            assert len(index) == len(self.model) <= CHUNKS_MAX
            assert {space for space in SPACES if space in index} == {key[0] for key in self.model}

    def expected(self, space: str, prompt: Sequence[int], stride: int) -> set[tuple[int, bytes, int, bool]]:
        last = len(prompt) - LENGTH
        starts: set[int] = set()
        for start in range(0, last + 1, stride):
            window = prompt[start : start + LENGTH]
            is_repeated = any(prompt[at : at + LENGTH] == window for at in starts if start < at + LENGTH)
            if not is_repeated:
                starts.add(start)
        found: set[tuple[int, bytes, int, bool]] = set()
        while starts:
            start = starts.pop()
            window = tuple(prompt[start : start + LENGTH])
            there = {(start, key[2], *value) for key, value in self.model.items() if key[:2] == (space, window)}
            if there - found and start + LENGTH <= last:
                starts.add(start + LENGTH)
            found |= there
        return found


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


@pytest.fixture(params=IMPLEMENTATIONS)
def native(request: pytest.FixtureRequest) -> Native:
    chosen: Native = request.param
    return chosen


def filled(native: Native, chunks: int, chunks_max: int, length: int = 16) -> tuple[ChunkIndex, list[list[int]]]:
    index, source = ChunkIndex(length, chunks_max, native=native), random.Random(chunks)
    content = [[source.randrange(2**32) for _ in range(length)] for _ in range(chunks)]
    for at, tokens in enumerate(content):
        assert index.add("space", tokens, chunk_hash(at), at, 0)
    return index, content


def test_planted_chunks_are_found_at_every_offset(native: Native) -> None:
    index, content = filled(native, 64, 64)
    for offset in range(40):
        prompt = [*range(offset), *content[offset], 7, *content[63 - offset]]
        found = index.match("space", prompt)
        assert [(each.start, each.place) for each in found] == [(offset, offset), (offset + 17, 63 - offset)]


def test_of_more_than_the_bound_the_latest_are_found_for_ever(native: Native) -> None:
    index, content = filled(native, 5000, 500)
    assert [bool(index.match("space", tokens)) for tokens in content] == [False] * 4500 + [True] * 500
    assert (len(index), index.added, index.evicted) == (500, 5000, 4500)


def test_what_was_found_stays_longer_and_what_was_missed_goes_first(native: Native) -> None:
    index, content = filled(native, 3, 3)
    (first,), (last,) = index.match("space", content[0]), index.match("space", content[2])
    index.note(first, is_there=True)
    index.note(last, is_there=False)
    index.add("space", [1] * 16, chunk_hash("new"), 0, 0)
    index.add("space", [2] * 16, chunk_hash("newer"), 0, 0)
    assert [bool(index.match("space", tokens)) for tokens in content] == [True, False, False]


def test_a_note_about_an_entry_that_has_gone_does_nothing(native: Native) -> None:
    index, content = filled(native, 1, 1)
    (match,) = index.match("space", content[0])
    index.add("space", [1] * 16, chunk_hash("new"), 0, 0)
    index.note(match, is_there=False)
    (other,) = index.match("space", [1] * 16)
    assert not other.is_missed


def test_a_space_that_is_empty_again_can_be_used_again(native: Native) -> None:
    index = ChunkIndex(4, 1, native=native)
    for at in range(70_000):
        assert index.add(at, [1, 2, 3, 4], chunk_hash(at), 0, 0)
    assert (len(index), index.refused) == (1, 0)
    assert index.match(69_999, [1, 2, 3, 4])
    assert not index.match(69_998, [1, 2, 3, 4])


def test_spaces_beyond_what_fits_are_refused(native: Native) -> None:
    index = ChunkIndex(4, 70_000, native=native)
    added = [index.add(at, [1, 2, 3, 4], chunk_hash(at), 0, 0) for at in range(65_537)]
    assert (added.count(True), index.refused) == (65_535, 2)


@pytest.mark.parametrize("prompt", [[], [1, 2, 3]])
def test_a_prompt_shorter_than_a_chunk_matches_nothing(prompt: list[int], native: Native) -> None:
    index = ChunkIndex(4, 8, native=native)
    index.add("space", [1, 2, 3, 4], chunk_hash(0), 0, 0)
    assert index.match("space", prompt) == []
    assert index.match("space", [0, 1, 2, 3, 4]) == [Match(1, chunk_hash(0), 0, 0, 1, False)]


def test_a_run_of_one_token_has_as_many_matches_as_chunks(native: Native) -> None:
    """It would have one for each token, and take a second of all lookups."""
    index = ChunkIndex(16, 8, native=native)
    for at in range(2):
        index.add("space", [7] * 16, chunk_hash(at), at, link(chunk_hash(at - 1)))
    index.add("space", [*range(16)], chunk_hash("other"), 0, 0)
    found = index.match("space", [1, *[7] * 160, *range(16)])
    assert sorted({each.start for each in found}) == [*range(1, 161, 16), 161]


def test_a_prompt_in_which_everything_matches_costs_a_bounded_time(native: Native) -> None:
    index = ChunkIndex(16, 64, native=native)
    for turn in range(16):
        index.add("space", [*range(turn, 16), *range(turn)], chunk_hash(turn), 0, 0)
    assert len(index.match("space", [*range(16)] * 100)) == MATCHES_MAX * 100


@pytest.mark.parametrize("missed", [None, 0, 1])
def test_of_equal_tokens_those_that_were_missed_make_room(missed: int | None, native: Native) -> None:
    index, tokens = ChunkIndex(4, 8, native=native), [1, 2, 3, 4]
    hashes = [chunk_hash(at) for at in range(3)]
    for each in hashes[:2]:
        assert index.add("space", tokens, each, 0, 0)
    for match in index.match("space", tokens):
        index.note(match, is_there=missed is None or match.hash != hashes[missed])
    assert index.add("space", tokens, hashes[2], 0, 0)
    left = {each.hash for each in index.match("space", tokens)}
    assert left == {hashes[1 - (missed or 0)], hashes[2]}


def test_what_cannot_be_a_chunk_is_refused_and_changes_nothing(native: Native) -> None:
    index = ChunkIndex(4, 8, native=native)
    for tokens, name in (
        ([1, 2, 3], b"1" * 32),
        ([1, 2, 3, 4], b"1"),
        ([1, 2, 3, -1], b"1" * 32),
        ([1, 2, 3, 2**32], b"1" * 32),
    ):
        with pytest.raises((ValueError, OverflowError)):
            index.add("space", tokens, name, 0, 0)
    assert (len(index), index.added, "space" in index) == (0, 0, False)


def test_tokens_are_decoded_from_their_wire_form(native: Native) -> None:
    tokens = [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1]
    index = ChunkIndex(4, 8, native=native)
    encoded = msgspec.msgpack.encode(tokens)[1:]
    assert list(index.decode(encoded, len(tokens))) == tokens
    index.add("space", tokens[2:6], chunk_hash(0), 0, 0)
    assert [each.start for each in index.match("space", index.decode(memoryview(encoded), len(tokens)))] == [2]
    for wrong in (encoded[:-1], msgspec.msgpack.encode(-1), b"\xa1a"):
        with pytest.raises(ValueError):
            index.decode(wrong, 1 if len(wrong) < 5 else len(tokens))


def test_only_where_it_must_be_compiled_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmcache_native", ModuleType("lmcache_native"))
    assert not ChunkIndex(4, 8).native
    with pytest.raises(RuntimeError, match="lmcache-native has tables of chunks of the kind None, not 1; install"):
        ChunkIndex(4, 8, native="on")
