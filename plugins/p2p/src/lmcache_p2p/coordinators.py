"""What peers ask coordinators: who is a member, and who has which keys."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import msgspec

from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_core import KeySpace, ObjectKey
from lmcache_fleet.http_connection import HttpConnection
from lmcache_fleet.messages import (
    FOUND_MAX,
    L1,
    PAGE_KEYS_MAX,
    Found,
    KeysOf,
    Lookup,
    LookupReply,
    decode_lookup_reply,
    encode,
)
from lmcache_p2p.identity import PeerUrl

logger = logging.getLogger(__name__)

DIRECTORY_SHARE: Final = 0.25
"""Of the time that peers have to answer a lookup: what a silent coordinator costs one."""
QUIET_SECONDS: Final = (1.0, 2.0)
"""Between two probes of a directory that is silent, by failures in a row."""
HINTS_MAX: Final = 1 << 18
"""Chunks that are remembered with the peer that hands them over."""
MSGPACK: Final = {"Content-Type": "application/msgpack"}


class Member(NamedTuple):
    instance: str
    url: PeerUrl


class _Entry(msgspec.Struct):
    instance_id: str
    p2p_advertised_url: str = ""


class _Entries(msgspec.Struct):
    instances: list[_Entry]


class Directory:
    """Who has which keys.  For one thread, but for what says otherwise."""

    def __init__(self, connections: Sequence[HttpConnection], own: str) -> None:
        """`own`: this server's name, whose entries are left out."""
        self._connections = list(connections)
        self._own = own
        self._failures = 0
        self._is_quiet = False
        self._found = deque[Found](maxlen=FOUND_MAX)
        self.asked = 0

    def found_at(self, instance: str, asked: int, stale: int) -> None:
        """Any thread: the next question says that of `asked` keys this server did not have `stale`.  The oldest of too many is
        forgotten."""
        self._found.append(Found(instance, asked, stale))

    @property
    def is_quiet(self) -> bool:
        """Any thread: no coordinator has answered, in time, and none has since."""
        return self._is_quiet

    @property
    def pause_seconds(self) -> float:
        """Any thread: while it is quiet, until the next probe."""
        return QUIET_SECONDS[min(max(self._failures - 1, 0), len(QUIET_SECONDS) - 1)]

    def is_late(self) -> None:
        """Any thread: a question was not answered in time."""
        if not self._is_quiet:
            logger.warning("directory of peers does not answer in time, and lookups go without it")
        self._is_quiet = True

    def probe(self) -> None:
        """See whether a coordinator answers again."""
        self._ask(Lookup(()))

    def close(self) -> None:
        """The last call."""
        for connection in self._connections:
            connection.close()

    def owners(self, keys: Sequence[ObjectKey]) -> list[tuple[Member, ...]]:
        """Of each key, those that are said to have it in L1.  Empty while no coordinator answers."""
        found: list[tuple[Member, ...]] = [()] * len(keys)
        if self.is_quiet:
            return found
        for begin in range(0, len(keys), PAGE_KEYS_MAX):
            by_space: dict[KeySpace, list[int]] = {}
            for place in range(begin, min(begin + PAGE_KEYS_MAX, len(keys))):
                by_space.setdefault(keys[place].space, []).append(place)
            parts = [
                KeysOf(space.tail, b"".join([keys[place].chunk_hash for place in places]))
                for space, places in by_space.items()
            ]
            reply = self._ask(Lookup(tuple(parts), tuple(self._found.popleft() for _ in range(len(self._found)))))
            if reply is None:
                return found
            for place, members in zip(chain.from_iterable(by_space.values()), self._members(reply), strict=False):
                found[place] = members
        return found

    def _ask(self, asked: Lookup) -> LookupReply | None:
        error: LMCacheError | None = None
        body = encode(asked)
        for connection in list(self._connections):
            try:
                self.asked += 1
                reply = decode_lookup_reply(connection.ask("POST", "/fleet/lookup", body, MSGPACK).body)
            except LMCacheError as failure:
                error = failure
                self._connections.append(self._connections.pop(0))  # another one is asked first from now on
                continue
            if self._is_quiet:
                logger.info("directory of peers answers again url=%s", connection.url)
            self._failures, self._is_quiet = 0, False
            return reply
        if not self._is_quiet:
            logger.warning("directory of peers does not answer, and lookups go without it error=%s", error)
        self._failures += 1
        self._is_quiet = True
        return None

    def _members(self, reply: LookupReply) -> list[tuple[Member, ...]]:
        owners: list[Member | None] = []
        for owner in reply.owners:
            try:
                is_peer = owner.source == L1 and owner.instance != self._own
                owners.append(Member(owner.instance, PeerUrl.read(owner.p2p_advertised_url)) if is_peer else None)
            except ProtocolError:
                owners.append(None)  # it has no peers, or none of ours
        ends, places = memoryview(reply.ends).cast("I"), memoryview(reply.places).cast("H")
        found = []
        for begin, end in pairwise((0, *ends)):
            named = [owners[place] for place in places[begin:end] if place < len(owners)]
            found.append(tuple(member for member in named if member is not None))
        return found


class Hints:
    """Which peer hands over which chunks: lookups of these go there, and not to the directory.  For one thread."""

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """By chunk hash: the peer's name, and until when that counts.  The first one ends first."""
        self._until = 0.0

    @property
    def count_now(self) -> bool:
        """Any thread: there may be some."""
        return time.monotonic() < self._until

    def add(self, chunk_hashes: Sequence[bytes], instance: str, seconds: float) -> None:
        """`seconds` is the same each time."""
        now = time.monotonic()
        self._until = now + seconds
        for chunk_hash in chunk_hashes:
            self._peers[chunk_hash] = instance, self._until
            self._peers.move_to_end(chunk_hash)
        while self._peers and (len(self._peers) > HINTS_MAX or next(iter(self._peers.values()))[1] < now):
            self._peers.popitem(last=False)

    def end(self, keys: Sequence[ObjectKey], instance: str) -> None:
        """This peer has them no more."""
        for key in keys:
            if self._peers.get(key.chunk_hash, ("",))[0] == instance:
                del self._peers[key.chunk_hash]

    def peer_of(self, key: ObjectKey) -> str:
        """Its name; empty: none hands this chunk over."""
        instance, until = self._peers.get(key.chunk_hash, ("", 0.0))
        return instance if time.monotonic() < until else ""


def members_at(connection: HttpConnection) -> list[Member]:
    """Those that are peers.  Raises LMCacheError."""
    try:
        entries = msgspec.json.decode(connection.ask("GET", "/instances").body, type=_Entries)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{connection.url} does not list instances: {error}") from None
    found = []
    for entry in entries.instances:
        try:
            found.append(Member(entry.instance_id, PeerUrl.read(entry.p2p_advertised_url)))
        except ProtocolError:
            continue  # not a peer
    return found


class Members:
    """The public keys that are let in: those of the members that the coordinator named last.  `follow` is the body of a
    thread; the rest is for any."""

    def __init__(self, connections: Sequence[HttpConnection], interval_seconds: float) -> None:
        self._connections = connections
        self._interval = interval_seconds
        self._changed = threading.Event()
        self._stopping = False
        self._by_key: Mapping[bytes, Member] = {}
        self._heard_at = time.monotonic()
        self._asked_at = 0.0
        self._left: list[Callable[[frozenset[bytes]], None]] = []
        self.why = ""
        """Why the last question was not answered; empty: it was."""

    def on_leave(self, function: Callable[[frozenset[bytes]], None]) -> None:
        """Call `function` with the keys that are members no more.  Before `follow` runs."""
        self._left.append(function)

    def name_of(self, key: bytes) -> str | None:
        """The member with this public key.  None: there is none, and the coordinator is asked soon."""
        member = self._by_key.get(key)
        if member is None:
            self._changed.set()
            return None
        return member.instance

    def named(self, instance: str) -> Member | None:
        """The member with this name.  None: there is none, and the coordinator is asked soon."""
        for member in self._by_key.values():
            if member.instance == instance:
                return member
        self._changed.set()
        return None

    @property
    def count(self) -> int:
        return len(self._by_key)

    @property
    def age_seconds(self) -> float:
        """Since a coordinator named them."""
        return time.monotonic() - self._heard_at

    def follow(self) -> None:
        while not self._stopping:
            self.look()
            self._changed.wait(self._interval)
            self._changed.clear()
            # A key that is not known makes this ask at once, but not all the time.
            pause = self._asked_at + min(0.25, self._interval) - time.monotonic()
            if pause > 0:
                time.sleep(pause)
        for connection in self._connections:
            connection.close()

    def look(self) -> None:
        """Ask once."""
        self._asked_at = time.monotonic()
        for connection in self._connections:
            try:
                by_key = {member.url.key: member for member in members_at(connection)}
            except LMCacheError as error:
                self.why = str(error)
                continue
            left = frozenset(self._by_key) - frozenset(by_key)
            self._by_key, self._heard_at, self.why = by_key, time.monotonic(), ""
            if left:
                for function in self._left:
                    function(left)
            return

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()
