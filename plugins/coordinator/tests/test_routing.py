"""Prefixes per server are what a look at each key would find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_client.errors import ProtocolError
from lmcache_coordinator.routing import Families, Match, Router
from lmcache_core import HashChain, KeySpace
from lmcache_fleet.directory import PureDirectory
from lmcache_fleet.families import Family, chunk_hashes, vector_of
from lmcache_fleet.messages import HASH_BYTES, L1
from lmcache_fleet.placements import Location, Placements, space_number

CHUNK = 4
TOKENS = list(range(100, 100 + 8 * CHUNK))
INSTANCES = ("a", "b", "c")
SHARED = ""
Has = Mapping[tuple[str, str, int], set[int]]
"""Chunks by instance (or SHARED), source and rank."""


def space(rank: int = 0, world: int = 1, chunk: int = CHUNK, chain: HashChain = HashChain.BLAKE3) -> KeySpace:
    return KeySpace("m", world << 24 | rank << 16 | world << 8 | rank, 0, "", chunk, chain, bytes(16))


def router(spaces: Sequence[KeySpace], has: Has, users: Sequence[str]) -> Router:
    placements = Placements(PureDirectory())
    numbers = {each: space_number(each.tail) for each in spaces}
    hashes = chunk_hashes(Family.of(spaces[0]), TOKENS)
    generations = {}
    for (instance, source, rank), chunks in has.items():
        location = Location(instance, 0, source)
        if location not in generations:
            generations[location] = placements.begin(location)
            placements.show(generations[location])
        for chunk in chunks:
            placements.add(
                generations[location],
                numbers[spaces[rank]],
                hashes[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES],
            )
    sources = {each: [L1, "disk", *(["shared"] if each in users else [])] for each in INSTANCES}
    return Router(placements, lambda model, salt: numbers if (model, salt) == ("m", "") else {}, lambda: sources)


def expected(has: Has, users: Sequence[str], world: int, instance: str) -> tuple[int, int, int]:
    """Tokens: anywhere, in memory, in storage."""

    def prefix(places: Sequence[tuple[str, str]]) -> int:
        for chunk in range(8):
            for rank in range(world):
                if not any(chunk in has.get((owner, source, rank), ()) for owner, source in places):
                    return chunk * CHUNK
        return 8 * CHUNK

    memory = [(instance, L1)]
    storage = [(instance, "disk"), *([(SHARED, "shared")] if instance in users else [])]
    per_rank = [prefix([*memory, *storage]), prefix(memory), prefix(storage)]
    return per_rank[0], per_rank[1], per_rank[2]


CHUNKS = st.one_of(st.sets(st.integers(0, 7)), st.integers(0, 8).map(lambda n: set(range(n))))
PLACES = st.sampled_from([(each, source) for each in INSTANCES for source in (L1, "disk")] + [(SHARED, "shared")])


@settings(max_examples=150, deadline=None)
@given(
    world=st.integers(1, 2),
    has=st.dictionaries(st.tuples(PLACES, st.integers(0, 1)), CHUNKS, max_size=10),
    users=st.sets(st.sampled_from(INSTANCES)),
)
def test_prefixes_are_what_a_look_at_each_key_finds(
    world: int, has: Mapping[tuple[tuple[str, str], int], set[int]], users: set[str]
) -> None:
    flat = {(*place, rank): chunks for (place, rank), chunks in has.items() if rank < world}
    spaces = [space(rank, world) for rank in range(world)]
    made = router(spaces, flat, sorted(users))
    found = made.by_tokens("m", "", TOKENS)
    assert {name: tuple(match)[1:] for name, match in found.items()} == {
        each: expected(flat, sorted(users), world, each) for each in INSTANCES
    }
    hashes = chunk_hashes(Family(CHUNK, HashChain.BLAKE3), TOKENS)
    assert made.by_hashes("m", "", CHUNK, hashes) == found
    other = made.by_hashes("m", "", CHUNK * 2, hashes)
    assert {name: (match.family.chunk_tokens, match.longest) for name, match in other.items()} == dict.fromkeys(
        INSTANCES, (CHUNK, 0)
    ), "another family is named, and has nothing"


def test_a_chunk_counts_when_all_its_shards_are_there() -> None:
    two = [space(0, 2), space(1, 2)]
    has = {("a", L1, 0): {0, 1, 2}, ("a", L1, 1): {0, 1}, ("b", L1, 0): {0, 1, 2}}
    found = router(two, has, ()).by_tokens("m", "", TOKENS)
    assert (found["a"].longest, found["b"].longest) == (2 * CHUNK, 0)
    # of the second shard no key was ever named
    assert router(two[:1], {("a", L1, 0): {0}}, ()).by_tokens("m", "", TOKENS)["a"].longest == 0


def test_the_best_family_of_a_server_is_answered() -> None:
    spaces = [space(chunk=8), space(chunk=4), space(chunk=4, chain=HashChain.SHA256_CBOR)]
    placements = Placements(PureDirectory())
    generation = placements.begin(Location("a", 0, L1))
    placements.show(generation)
    for each, chunks in zip(spaces, (1, 3, 1), strict=True):
        placements.add(
            generation, space_number(each.tail), chunk_hashes(Family.of(each), TOKENS)[: chunks * HASH_BYTES]
        )
    numbers = {each: space_number(each.tail) for each in spaces}
    made = Router(placements, lambda *_: numbers, lambda: {"a": [L1]})
    assert made.by_tokens("m", "", TOKENS)["a"] == Match(Family(4, HashChain.BLAKE3), 12, 12, 0)
    assert made.by_tokens("m", "", TOKENS[:9])["a"].longest == 8
    assert made.by_tokens("m", "", TOKENS[:3])["a"].longest == 0


@pytest.mark.parametrize("tokens", [[-1] * 4, [2**32] * 4, [2**70] * 4])
def test_numbers_that_cannot_be_tokens_are_refused(tokens: list[int]) -> None:
    for chain in HashChain:
        with pytest.raises(ProtocolError, match="token_ids"):
            chunk_hashes(Family(4, chain), tokens)


def test_a_seed_of_its_own_is_a_family_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    family = Family(16, HashChain.SHA256_CBOR)
    ours = vector_of(family)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    vector_of.cache_clear()
    other = vector_of(family)
    monkeypatch.undo()
    vector_of.cache_clear()
    assert other != ours
    families = Families()
    families.heard("a", 16, "sha256_cbor", ours)
    families.heard("quiet", 0, "", "")
    families.heard("a", 16, "sha256_cbor", ours)
    assert not caplog.records
    assert families.unlike_ours() == set()
    families.heard("b", 16, "sha256_cbor", other)
    assert "in its own way" in caplog.text
    assert families.unlike_ours() == {"b"}
    families.forget("b")
    assert families.unlike_ours() == set()


def test_a_question_hashes_no_test_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered on the event loop; what a server says is compared when it registers."""
    families = Families()
    families.heard("a", 256, "blake3", "ab" * 32)
    monkeypatch.setattr("lmcache_coordinator.routing.vector_of", lambda _: pytest.fail("hashed for a question"))
    assert families.unlike_ours() == {"a"}
