"""What members send to a coordinator, and what it answers: msgpack, read strictly.

Each server keeps **journals**: numbered changes of what its L1, or one of its L2 backends, has.  A number belongs to one key,
and numbers have no gaps.  The coordinator derives everything else from them and asks for what it misses, so that a message may
be lost, sent twice, or arrive late.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from lmcache_client.errors import ProtocolError
from lmcache_core import KeySpace, ObjectKey, parse_canonical

HASH_BYTES: Final = 32
PAGE_KEYS_MAX: Final = 65_536
"""Keys in one page."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one message: the keys of a full page are half of it."""
NAME_CHARACTERS_MAX: Final = 256
SPACES_MAX: Final = 4096
"""Spaces that one page names."""
SPACE_BYTES_MAX: Final = 2048
SECRET_HEADER: Final = "lmcache-instance-secret"
SECRET_BYTES: Final = 32
"""Of a member, hex in the header: binds its id."""
PROOF_PATH: Final = "/fleet/proof/"
"""Of a member's admin API, with a challenge behind it: the answer has `proof_of` it."""
SOURCES_MAX: Final = 256
"""Of one member."""
COMMAND_KEYS_MAX: Final = 5000
"""Keys that one command deletes."""
FOUND_MAX: Final = 64
"""Servers of which one lookup says what was found there."""
L1: Final = "l1"
"""The source of a server's own memory.  Others are the names of its L2 adapters."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
SpaceBytes = Annotated[bytes, Meta(max_length=SPACE_BYTES_MAX)]
Message = TypeVar("Message", bound=msgspec.Struct)


class Kind(StrEnum):
    """What happened to a key."""

    STORE = "store"
    DELETE = "delete"
    ACCESS = "access"
    """Found by a lookup; only of sources that are L2 backends."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One kind of change of some keys of one space, in order."""

    kind: Kind
    space: Number
    """Index in the page's `spaces`."""
    object_bytes: Number
    """Of each of the objects."""
    hashes: bytes
    """Chunk hashes, one behind the other."""

    @property
    def keys(self) -> int:
        return len(self.hashes) // HASH_BYTES

    def split(self) -> Iterator[bytes]:
        return (self.hashes[at : at + HASH_BYTES] for at in range(0, len(self.hashes), HASH_BYTES))


class Page(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What pages of journals and of snapshots have in common."""

    instance: Name
    incarnation: Name
    """New with each start of the server; numbers are compared within one incarnation only."""
    source: Name
    epoch: Number = 0
    """Larger for an adapter than for one before it with the same name: the source begins anew, and so do its numbers."""
    content: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Its type.  Empty: the keys that the source has; pages of other types are for views (`lmcache_fleet.view`)."""
    backend: str = ""
    """The adapter's type; empty for L1."""
    shared: bool = False
    """Other servers use the same backend."""
    worker: Number = 0
    spaces: Annotated[tuple[SpaceBytes, ...], Meta(max_length=SPACES_MAX)] = ()
    """Everything in a key but the chunk hash, in the canonical form of keys (object format, "Object key")."""
    runs: tuple[Run, ...] = ()
    body: bytes = b""
    """Of types that say more of the keys than that they are there."""

    @cached_property
    def key_spaces(self) -> tuple[KeySpace, ...]:
        """Raises ProtocolError."""
        return tuple(parse_canonical(bytes(HASH_BYTES) + tail).space for tail in self.spaces)

    @cached_property
    def keys(self) -> int:
        return sum(run.keys for run in self.runs)

    def objects(self, run: Run) -> Iterator[ObjectKey]:
        space = self.key_spaces[run.space]
        return (ObjectKey(space, chunk_hash) for chunk_hash in run.split())


class JournalPage(Page, frozen=True, kw_only=True, tag="journal", dict=True):
    first: Number
    """Number of the first key of the first run; the others follow.  A page without runs says what comes next."""

    @property
    def end(self) -> int:
        return self.first + self.keys


class SnapshotPage(Page, frozen=True, kw_only=True, tag="snapshot", dict=True):
    """A part of everything that a source has.  Runs are stores.  What changed while the pages were made is in the journal from
    `begins_at` on; the pages and those changes together are what the source has."""

    snapshot: Number
    """Larger than that of every earlier snapshot of this source and incarnation."""
    begins_at: Number
    """The journal's next number at the start of the snapshot."""
    page: Number
    """0 for the first; the others follow without a gap."""
    last: bool


class FullSync(msgspec.Struct, frozen=True, tag="full_sync"):
    """Send a snapshot of this source, and then its journal from where that begins."""

    source: Name


class Freeze(msgspec.Struct, frozen=True, tag="freeze"):
    """Refuse stores, and look up in L1 only: until a reply without this command, and no longer than this time, or the member's
    own limit, from the first reply that had it."""

    seconds: Seconds


class DeleteKeys(msgspec.Struct, frozen=True, tag="delete"):
    """Delete these objects from this source.  What was deleted comes back in the journal."""

    source: Name
    space: SpaceBytes
    hashes: Annotated[bytes, Meta(max_length=COMMAND_KEYS_MAX * HASH_BYTES)]


Command = FullSync | Freeze | DeleteKeys


class Reply(msgspec.Struct, frozen=True):
    """To every page and heartbeat."""

    expects: dict[str, int] = {}
    """By source: the number that is awaited next.  The member sends the journal from there on, whatever it has sent before, and
    a snapshot where its journal does not go back that far.  A source that is not there is not known: a snapshot, or the journal
    from 0 on."""
    commands: tuple[Command, ...] = ()
    types: tuple[str, ...] = ()
    """Of pages that a view of the coordinator asks for, beside those of keys."""


class Heartbeat(msgspec.Struct, frozen=True):
    """What a member without news may say.  An empty body says nothing."""

    not_deleted: Annotated[tuple[Name, ...], Meta(max_length=SOURCES_MAX)] = ()
    """Sources from which it did not delete all that it was asked to: others are asked."""
    sources: Annotated[dict[Name, Number], Meta(max_length=SOURCES_MAX)] | None = None
    """All that it sends pages of, with their epochs: others of it are gone.  None: not said."""


NOTHING: Final = Heartbeat()


class Found(msgspec.Struct, frozen=True, array_like=True):
    """What a reader has found at one server since it last said so."""

    instance: Name
    asked: Number
    """Keys."""
    stale: Number
    """Those of them, or of what was said before, that were not there, not given, or given wrong."""


class KeysOf(msgspec.Struct, frozen=True, array_like=True):
    """Some keys of one space."""

    space: SpaceBytes
    hashes: Annotated[bytes, Meta(max_length=PAGE_KEYS_MAX * HASH_BYTES)]
    """Chunk hashes, one behind the other."""


class Lookup(msgspec.Struct, frozen=True):
    """Who has these keys?  At most PAGE_KEYS_MAX of them."""

    parts: Annotated[tuple[KeysOf, ...], Meta(max_length=SPACES_MAX)]
    found: Annotated[tuple[Found, ...], Meta(max_length=FOUND_MAX)] = ()
    """Of answers to earlier lookups.  A hint."""

    @property
    def keys(self) -> int:
        return sum(len(part.hashes) for part in self.parts) // HASH_BYTES


class KeyOwner(msgspec.Struct, frozen=True):
    """A place that has keys, and where its server is reached."""

    instance: str
    source: str
    worker: int
    ip: str
    http_port: int
    mq_port: int
    p2p_advertised_url: str


class LookupReply(msgspec.Struct, frozen=True):
    """The owners of key i, counted through all parts, are those whose index is in `places` from ends[i - 1] to ends[i].  A
    hint: readers verify keys."""

    owners: tuple[KeyOwner, ...]
    ends: bytes
    """u32 each, little-endian"""
    places: bytes
    """u16 each, little-endian: index in `owners`"""


_ENCODER: Final = msgspec.msgpack.Encoder()
_PAGES: Final[msgspec.msgpack.Decoder[JournalPage | SnapshotPage]] = msgspec.msgpack.Decoder(JournalPage | SnapshotPage)
_LOOKUP: Final = msgspec.msgpack.Decoder(Lookup)
_LOOKUP_REPLY: Final = msgspec.msgpack.Decoder(LookupReply)
_HEARTBEAT: Final = msgspec.msgpack.Decoder(Heartbeat)
_REPLY: Final = msgspec.msgpack.Decoder(Reply)


def encode(message: msgspec.Struct) -> bytes:
    return _ENCODER.encode(message)


def proof_of(secret: bytes, challenge: str) -> str:
    """HMAC-SHA256 in hex: who answers with it has the secret, which it does not show."""
    return hmac.new(secret, challenge.encode(), "sha256").hexdigest()


def decode_page(data: bytes) -> JournalPage | SnapshotPage:
    """Raises ProtocolError, naming what is wrong, for anything that is not one whole, valid page."""
    if len(data) > PAGE_BYTES_MAX:
        raise ProtocolError(f"a page of {len(data)} bytes; at most {PAGE_BYTES_MAX} are read")
    try:
        page = _PAGES.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a page of a journal or a snapshot: {error}") from None
    check_page(page)
    return page


def check_page(page: Page) -> None:
    """Raises ProtocolError."""
    for number, run in enumerate(page.runs):
        if run.space >= len(page.spaces):
            raise ProtocolError(f"run {number}: there is no space {run.space}, the page names {len(page.spaces)}")
        if not run.hashes or len(run.hashes) % HASH_BYTES:
            raise ProtocolError(f"run {number}: {len(run.hashes)} bytes of hashes, not a multiple of {HASH_BYTES}")
        if isinstance(page, SnapshotPage) and run.kind is not Kind.STORE:
            raise ProtocolError(f"run {number}: a snapshot has stores only, not {run.kind.value}")
    if page.keys > PAGE_KEYS_MAX:
        raise ProtocolError(f"a page of {page.keys} keys; at most {PAGE_KEYS_MAX} are read")
    page.key_spaces  # noqa: B018 - raises


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Raises ProtocolError."""
    try:
        return _HEARTBEAT.decode(data) if data else NOTHING
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a heartbeat: {error}") from None


def decode_reply(data: bytes) -> Reply:
    """Raises ProtocolError."""
    try:
        return _REPLY.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a reply of a coordinator: {error}") from None


def decode_lookup(data: bytes) -> Lookup:
    """Raises ProtocolError."""
    try:
        asked = _LOOKUP.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a lookup: {error}") from None
    for part in asked.parts:
        if len(part.hashes) % HASH_BYTES:
            raise ProtocolError(f"a lookup with {len(part.hashes)} bytes of hashes, not a multiple of {HASH_BYTES}")
        parse_canonical(bytes(HASH_BYTES) + part.space)
    if asked.keys > PAGE_KEYS_MAX:
        raise ProtocolError(f"a lookup of {asked.keys} keys; at most {PAGE_KEYS_MAX} are answered")
    return asked


def decode_lookup_reply(data: bytes) -> LookupReply:
    """Raises ProtocolError."""
    try:
        return _LOOKUP_REPLY.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an answer to a lookup: {error}") from None


def split_pages(runs: Sequence[Run], keys: int = PAGE_KEYS_MAX) -> Iterator[tuple[Run, ...]]:
    """Groups of runs with at most this number of keys each; a longer run is cut."""
    group, room = list[Run](), keys
    for run in runs:
        at = 0
        while at < len(run.hashes):
            part = run.hashes[at : at + room * HASH_BYTES]
            group.append(Run(run.kind, run.space, run.object_bytes, part))
            at += len(part)
            room -= len(part) // HASH_BYTES
            if room == 0:
                yield tuple(group)
                group, room = [], keys
    if group:
        yield tuple(group)
