"""Where a prompt is cached: how long a prefix of it each server has, for routers.

A prompt's tokens are hashed anew for each family that members have; hashes that a caller brings are those of one family."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from lmcache_core import HashChain, KeySpace
from lmcache_fleet.families import Family, chunk_hashes, vector_of
from lmcache_fleet.messages import HASH_BYTES, L1
from lmcache_fleet.placements import Location, Placements

logger = logging.getLogger(__name__)

PROMPT_TOKENS_MAX: Final = 1 << 20
PROMPT_CHUNKS_MAX: Final = 1 << 16


class Match(NamedTuple):
    """How many tokens from the first on one server has, by where it has them."""

    family: Family
    longest: int
    """In any of them, and in all together: some chunks here, some there."""
    memory: int
    """In the server's L1."""
    storage: int
    """In its L2 backends."""


class _Prefixes(NamedTuple):
    """In chunks, by instance."""

    together: list[int]
    memory: list[int]
    storage: list[int]


class Router:
    """Safe from any thread."""

    def __init__(
        self,
        placements: Placements,
        spaces_of: Callable[[str, str], Mapping[KeySpace, int]],
        sources: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        """`spaces_of`: those of a model and a salt, with their numbers.  `sources`: by instance, the names of its
        sources; the same object as long as nothing has changed, as `Placements.owners`."""
        self._placements = placements
        self._spaces_of = spaces_of
        self._sources = sources
        self._known: _Places | None = None

    def by_tokens(self, model: str, salt: str, tokens: Sequence[int]) -> Mapping[str, Match]:
        """By instance, of its best family; all instances that have a source are in it.  Raises ProtocolError for a number that
        cannot be a token."""
        hashes: dict[Family, bytes] = {}

        def of(family: Family) -> bytes:
            if family not in hashes:
                hashes[family] = chunk_hashes(family, tokens)
            return hashes[family]

        return self._best(model, salt, of)

    def by_hashes(self, model: str, salt: str, chunk_tokens: int, hashes: bytes) -> Mapping[str, Match]:
        """Of families with this chunk size.  Members of others have 0 tokens there, under their own family."""
        return self._best(model, salt, lambda family: hashes if family.chunk_tokens == chunk_tokens else b"")

    def hashes_of_prompt(self, model: str, salt: str, tokens: Sequence[int]) -> list[bytes]:
        """Of its whole chunks, in every family that members have.  Raises ProtocolError."""
        families = {Family.of(space): None for space in self._spaces_of(model, salt)}
        packed = b"".join(chunk_hashes(family, tokens) for family in families)
        return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]

    def keys_of_prompt(self, model: str, salt: str, tokens: Sequence[int], world_size: int) -> Mapping[KeySpace, bytes]:
        """By space: the hashes of its whole chunks.  Raises ProtocolError."""
        return {
            space: chunk_hashes(Family.of(space), tokens)
            for space in self._spaces_of(model, salt)
            if space.kv_rank >> 24 == world_size
        }

    def _best(self, model: str, salt: str, hashes_of: Callable[[Family], bytes]) -> Mapping[str, Match]:
        sources = self._sources()
        groups: dict[tuple[str, Family, int], dict[KeySpace, int]] = defaultdict(dict)
        for space, number in self._spaces_of(model, salt).items():
            groups[space.model_name, Family.of(space), space.kv_rank >> 24][space] = number
        instances, best = list(sources), dict[str, Match]()
        places = self._places(sources)
        for (_, family, world_size), spaces in groups.items():
            found = self._of_all_shards(places, spaces, world_size, hashes_of(family))
            best = best or dict.fromkeys(instances, Match(family, 0, 0, 0))
            for at in [at for at, chunks in enumerate(found.together) if chunks]:
                chunks = (found.together[at], found.memory[at], found.storage[at])
                match = Match(family, *(each * family.chunk_tokens for each in chunks))
                if match[1:] > best[instances[at]][1:]:
                    best[instances[at]] = match
        return best

    def _places(self, sources: Mapping[str, Sequence[str]]) -> _Places:
        """Made anew where servers, their sources or their generations are others than before."""
        owners, known = self._placements.owners(), self._known
        if known is None or not known.is_of(owners, sources):
            known = self._known = _Places(owners, sources)
        return known

    def _of_all_shards(
        self, places: _Places, spaces: Mapping[KeySpace, int], world_size: int, hashes: bytes
    ) -> _Prefixes:
        """A chunk counts where every shard of it is, in every object group.  Shards of one rank and group can have several
        layouts; a server has one of them."""
        shards: dict[tuple[int, int], list[int]] = defaultdict(list)
        for space, number in spaces.items():
            shards[space.kv_rank, space.object_group].append(number)
        groups = {group for _, group in shards}
        instances = places.instances
        if not hashes or len(shards) < world_size * len(groups):
            return _Prefixes([0] * instances, [0] * instances, [0] * instances)
        found = [
            _combined(max, [places.prefixes(*self._placements.find(number, hashes)) for number in numbers])
            for numbers in shards.values()
        ]
        return _combined(min, found)


class Families:
    """What members say of how they name chunks.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, tuple[Family, str]] = {}
        self._unlike_ours: set[str] = set()

    def heard(self, instance: str, chunk_tokens: int, chain: str, vector: str) -> None:
        """Nothing is learnt from a member that does not say all of it.  One that differs from the others is logged.
        Hashes a chunk: not for an event loop."""
        try:
            family = Family(chunk_tokens, HashChain[chain.upper()])
        except KeyError:
            return
        if not chunk_tokens:
            return
        is_unlike = bool(vector) and vector.lower() != vector_of(family)
        with self._lock:
            (self._unlike_ours.add if is_unlike else self._unlike_ours.discard)(instance)
            others = {each for name, each in self._said.items() if name != instance}
            self._said[instance] = (family, vector.lower())
            differs = bool(others) and (family, vector.lower()) not in others
        if differs:
            logger.warning(
                "instance names chunks in its own way, and shares nothing with the others: start all servers with one "
                "--chunk-size, --hash-algorithm and PYTHONHASHSEED instance=%s family=%s",
                instance,
                family,
            )

    def forget(self, instance: str) -> None:
        with self._lock:
            self._said.pop(instance, None)
            self._unlike_ours.discard(instance)

    def of(self) -> Mapping[str, tuple[Family, str]]:
        """By instance: its family, and the hash of its test vector, empty where it did not say."""
        with self._lock:
            return dict(self._said)

    def unlike_ours(self) -> set[str]:
        """Instances whose hashes this coordinator cannot compute from tokens, because their seed is another."""
        with self._lock:
            return set(self._unlike_ours)


def _combined(choose: Callable[[Iterable[int]], int], found: Sequence[_Prefixes]) -> _Prefixes:
    if len(found) == 1:
        return found[0]
    return _Prefixes(*([choose(each) for each in zip(*lists, strict=True)] for lists in zip(*found, strict=True)))


class _Places:
    """Which instances each owner of the directory counts for: bits of an integer, in the order of `sources`."""

    def __init__(self, owners: Mapping[int, Location], sources: Mapping[str, Sequence[str]]) -> None:
        self._made_of = owners, sources
        self.instances: Final = len(sources)
        bits = {instance: 1 << at for at, instance in enumerate(sources)}
        users: dict[str, int] = defaultdict(int)
        for instance, names in sources.items():
            for name in names:
                users[name] |= bits[instance]
        self._memory: dict[int, int] = {}
        self._storage: dict[int, int] = {}
        for owner, location in owners.items():
            # what is shared has no instance: all that use the source can read it
            mine = bits.get(location.instance, 0) if location.instance else users[location.source]
            (self._memory if location.source == L1 else self._storage)[owner] = mine

    def is_of(self, owners: Mapping[int, Location], sources: Mapping[str, Sequence[str]]) -> bool:
        """Were these very objects given?"""
        return self._made_of[0] is owners and self._made_of[1] is sources

    def prefixes(self, ends: Sequence[int], owners: Sequence[int]) -> _Prefixes:
        """Chunks from the first on, of each instance."""
        memory_of, storage_of = self._memory.get, self._storage.get
        alive = [(1 << self.instances) - 1] * 3
        lengths = [[0] * self.instances for _ in alive]
        for at, (begin, end) in enumerate(pairwise((0, *ends))):
            memory = storage = 0
            for owner in owners[begin:end]:
                memory |= memory_of(owner, 0)
                storage |= storage_of(owner, 0)
            for kind, here in enumerate((memory | storage, memory, storage)):
                if ended := alive[kind] & ~here:
                    alive[kind] &= here
                    if at:
                        _set(lengths[kind], ended, at)
            if not alive[0]:
                break
        else:
            for kind, left in enumerate(alive):
                _set(lengths[kind], left, len(ends))
        return _Prefixes(*lengths)


def _set(lengths: list[int], bits: int, value: int) -> None:
    while bits:
        lowest = bits & -bits
        lengths[lowest.bit_length() - 1] = value
        bits ^= lowest
