"""Takes in what members send: placements for the directory, and usage of shared backends."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_coordinator.backend_listing import BackendListing
from lmcache_coordinator.registry import UnknownInstanceError
from lmcache_coordinator.spaces import Spaces
from lmcache_coordinator.usage import Backend, SharedUsage
from lmcache_coordinator.views import Views
from lmcache_core import Clock, KeySpace
from lmcache_fleet.cursor import Cursor, Doing
from lmcache_fleet.messages import HASH_BYTES, L1, SOURCES_MAX, FullSync, JournalPage, Kind, Page, SnapshotPage
from lmcache_fleet.placements import Generation, Location, Placements

LEFT_MAX: Final = 10_000
"""Members that have left and are remembered."""
SHARED: Final = ""
"""In the place of an instance: every server that uses the backend."""
UNUSED_TIMEOUTS: Final = 10
"""Until a shared backend that no member names any more is forgotten."""


class Counts(NamedTuple):
    """Of pages and their keys: keys = applied + known + refused."""

    pages: int = 0
    applied: int = 0
    known: int = 0
    """They were applied before."""
    refused: int = 0
    """Others are missing in front of them, or they are of a snapshot that was superseded."""
    gaps: int = 0


class Lag(NamedTuple):
    """Of one source of one member."""

    source: str
    keys: int
    gaps: int
    expects: int | None


class _Source:
    def __init__(self, location: Location, backend: Backend | None, epoch: int, is_new: bool) -> None:
        """`backend`: of one that is shared.  `is_new`: nothing that the member has reported is missing."""
        self.location: Final = location
        self.backend: Final = backend
        self.epoch: Final = epoch
        self.is_new: Final = is_new
        self.cursor = Cursor()
        self.shown: Generation | None = None
        self.building: Generation | None = None


class _Member:
    """The journals of one incarnation."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation: Final = incarnation
        self.lock = threading.Lock()  # one page of a member at a time
        self.sources: dict[str, _Source] = {}
        """Changed under the lock of all members, too."""
        self.has_left = False
        self.is_new = True
        """It has not joined before, and nothing that it has reported was lost."""


class Journals:
    """Safe from any thread.  Pages of different members are taken in at the same time."""

    def __init__(
        self,
        placements: Placements,
        usage: SharedUsage,
        clock: Clock,
        lists_new: bool,
        late_seconds: float,
        views: Views | None = None,
    ) -> None:
        """`lists_new`: a shared backend is listed when a new member names it.  `late_seconds`: how long after a change it may
        be reported."""
        self._placements = placements
        self._usage = usage
        self._clock = clock
        self._lists_new = lists_new
        self._late = late_seconds
        self._views = views or Views({})
        self._lock = threading.Lock()  # guards all below
        self._members: dict[str, _Member] = {}
        self._sources: Mapping[str, Sequence[str]] | None = None
        """What `sources` returns; None where that has changed."""
        self._shared: dict[Backend, Generation] = {}
        self._listings: dict[Backend, BackendListing] = {}
        self._unused_since: dict[Backend, float] = {}
        self._left: dict[str, str] = {}
        """Incarnations of members that have left, the last one last: they may come back."""
        self.spaces: Final = Spaces()
        self._taken_at: float | None = None
        self._counts = Counts()

    def take(self, page: Page) -> Mapping[str, int]:
        """Apply a page, as far as it was not applied before and nothing in front of it is missing.  Returns the number that is
        awaited next, by source.  Raises UnknownInstanceError for another incarnation than the one that joined."""
        member = self._member(page.instance)
        with member.lock:
            if member.has_left or member.incarnation != page.incarnation:
                raise UnknownInstanceError(
                    f"instance '{page.instance}' is not registered; register it, and send everything it has"
                )
            if page.runs:
                self._taken_at = self._clock.monotonic()
            source = self._source(member, page)
            if source is None:
                self._count(page, 0, 0)
                return _expected(member)
            gaps = source.cursor.gaps
            try:
                applied = self._apply(source, page)
            except Exception:
                # The cursor is past what was applied only in part: the member sends everything again.
                self._drop_source(page.instance, member, page.source)
                raise
            self._count(page, applied or 0, source.cursor.gaps - gaps)
            if applied is not None:
                self._views.take(page, page.keys - applied)
            return _expected(member)

    def _apply(self, source: _Source, page: Page) -> int | None:
        """Returns how many of its keys were applied; None where it was not admitted."""
        if page.content:
            return self._admit(source, page)
        if source.backend is not None:
            return self._take_shared(source, source.backend, page)
        if isinstance(page, JournalPage):
            return self._take_journal(source, page)
        assert isinstance(page, SnapshotPage)
        return self._take_snapshot(source, page)

    def _source(self, member: _Member, page: Page) -> _Source | None:
        """None: it is of an adapter that another one has followed under its name."""
        backend = Backend(page.backend, page.source) if page.shared else None
        source = member.sources.get(page.source)
        if source is not None:
            if page.epoch < source.epoch:
                return None
            if (source.epoch, source.backend) == (page.epoch, backend):
                return source
            self._drop_source(page.instance, member, page.source)
        elif len(member.sources) >= SOURCES_MAX:
            raise ProtocolError(
                f"instance '{page.instance}' has {SOURCES_MAX} sources, which is the most; '{page.source}' is one more"
            )
        location = Location(page.instance, page.worker, page.source)
        with self._lock:
            if backend is not None:
                self._begin_shared(backend)
            source = member.sources[page.source] = _Source(location, backend, page.epoch, member.is_new)
            self._sources = None
        return source

    def is_busy(self, instance: str | None = None) -> bool:
        """Does a thread have the lock now that every call takes, or that of this instance's pages?"""
        member = None if instance is None else self._members.get(instance)
        return self._lock.locked() or (member is not None and member.lock.locked())

    def counts(self) -> Counts:
        with self._lock:
            return self._counts

    def _count(self, page: Page, applied: int, gaps: int) -> None:
        left = page.keys - applied
        is_known = isinstance(page, JournalPage) and not (gaps and not applied)
        with self._lock:
            pages, before, known, refused, before_gaps = self._counts
            self._counts = Counts(
                pages + 1,
                before + applied,
                known + left * is_known,
                refused + left * (not is_known),
                before_gaps + gaps,
            )

    def expects(self, instance: str) -> Mapping[str, int]:
        """Raises UnknownInstanceError."""
        member = self._member(instance)
        with member.lock:
            return _expected(member)

    def is_synced(self, instance: str) -> bool:
        """Is all that it has in places of its own known, and no snapshot of it under way?  Raises UnknownInstanceError."""
        member = self._member(instance)
        with member.lock:
            l1 = member.sources.get(L1)
            is_known = l1 is not None and l1.cursor.next is not None
            return is_known and all(each.building is None for each in member.sources.values())

    def keep(self, instance: str, epochs: Mapping[str, int]) -> None:
        """These are all the sources that it has, with their epochs.  Raises UnknownInstanceError."""
        member = self._member(instance)
        with member.lock:
            for name, source in list(member.sources.items()):
                if epochs.get(name, source.epoch + 1) > source.epoch:
                    self._drop_source(instance, member, name)

    def join(self, instance: str, incarnation: str) -> None:
        """Its pages are taken in from now on, and no longer those of another incarnation."""
        with self._lock:
            before = self._members.get(instance)
            if before is not None and before.incarnation == incarnation:
                return
            member = self._members[instance] = _Member(incarnation)
            member.is_new = self._left.pop(instance, None) != incarnation
            self._sources = None
        if before is not None:
            self._end(instance, before)

    def forget(self, instance: str) -> None:
        """Everything that this instance has in its own memory and backends is gone from the directory.  O(1) per source."""
        with self._lock:
            member = self._members.pop(instance, None)
            self._sources = None
            if member is not None:
                self._left[instance] = member.incarnation
                if len(self._left) > LEFT_MAX:
                    del self._left[next(iter(self._left))]
        if member is not None:
            self._end(instance, member)

    def _end(self, instance: str, member: _Member) -> None:
        with member.lock:
            member.has_left = True
            for source in member.sources.values():
                self._drop(instance, source)
            self._views.forget(instance)

    def _drop_source(self, instance: str, member: _Member, name: str) -> None:
        """Under the member's lock.  What it still sends of it begins anew."""
        with self._lock:
            source = member.sources.pop(name)
            member.is_new, self._sources = False, None
        self._drop(instance, source)

    def _drop(self, instance: str, source: _Source) -> None:
        for generation in (source.shown, source.building):
            if generation is not None:
                self._placements.drop(generation)
        if source.backend is None:
            return
        with self._lock:
            listing = self._listings[source.backend]
            if listing.has_left(instance):
                self._usage.abandon_listing(source.backend)
            listing.want(self._clock.monotonic() + self._late)  # what it did there last was not sent

    def lags(self) -> Mapping[str, Sequence[Lag]]:
        """By instance."""
        with self._lock:
            members = dict(self._members)
        counts = self._placements.counts()
        found = {}
        for instance, member in members.items():
            with member.lock:
                found[instance] = [
                    Lag(name, counts.get(each.location, 0), each.cursor.gaps, each.cursor.next)
                    for name, each in member.sources.items()
                ]
        return found

    def quiet_seconds(self) -> float | None:
        """Since a member last sent changes; None: none has."""
        return None if self._taken_at is None else max(0.0, self._clock.monotonic() - self._taken_at)

    def backends(self) -> Sequence[Backend]:
        """Shared ones that a member has named."""
        with self._lock:
            return list(self._shared)

    def incomplete(self) -> Sequence[Backend]:
        """Shared backends of which something may be missing: a member is asked to list each."""
        with self._lock:
            return [backend for backend, listing in self._listings.items() if listing.is_wanted]

    def sources(self) -> Mapping[str, Sequence[str]]:
        """By instance, as its locations name them.  The same object as before where nothing has changed."""
        with self._lock:
            if (known := self._sources) is None:
                known = self._sources = {
                    instance: [
                        name if source.backend is None else self._shared[source.backend].location.source
                        for name, source in member.sources.items()
                    ]
                    for instance, member in self._members.items()
                }
            return known

    def users(self) -> Mapping[Backend, Collection[str]]:
        """Instances by shared backend."""
        found: dict[Backend, set[str]] = {}
        with self._lock:
            for instance, member in self._members.items():
                for source in member.sources.values():
                    if source.backend is not None:
                        found.setdefault(source.backend, set()).add(instance)
        return found

    def forget_unused(self) -> None:
        """Shared backends that no member has named for a while: adapters get other names, and servers are retired."""
        now, used = self._clock.monotonic(), self.users()
        with self._lock:
            self._unused_since = {
                backend: self._unused_since.get(backend, now) for backend in self._shared if backend not in used
            }
            for backend, since in self._unused_since.items():
                if now - since >= UNUSED_TIMEOUTS * self._late and not self._is_named(backend):
                    self._placements.drop(self._shared.pop(backend))
                    del self._listings[backend]
                    self._usage.forget(backend)

    def _is_named(self, backend: Backend) -> bool:
        return any(backend == source.backend for member in self._members.values() for source in member.sources.values())

    def needs_listing(self, backend: Backend, reports_are_lost: bool) -> None:
        """Something is missing of what is known of it."""
        with self._lock:
            again_at = self._clock.monotonic() + self._late if reports_are_lost else math.inf
            self._listings[backend].want(again_at)

    def to_list(self, instance: str) -> Sequence[FullSync]:
        """Sources that this member is to list now, one member at a time."""
        now = self._clock.monotonic()
        due = []
        with self._lock:
            member = self._members.get(instance)
            for backend, listing in self._listings.items():
                source = None if member is None else member.sources.get(backend.name)
                if source is not None and source.backend == backend and listing.is_due(now):
                    listing.ask(instance, now)
                    due.append(FullSync(backend.name))
        return due

    def _member(self, instance: str) -> _Member:
        with self._lock:
            member = self._members.get(instance)
        if member is None:
            raise UnknownInstanceError(
                f"instance '{instance}' is not registered; register it, and send everything it has"
            )
        return member

    def _admit(self, source: _Source, page: Page) -> int | None:
        """A page that is for views alone."""
        if isinstance(page, SnapshotPage):
            return None if source.cursor.snapshot(page).doing is Doing.NOTHING else page.keys
        assert isinstance(page, JournalPage)
        step = source.cursor.journal(page)
        return page.keys - step.skip if step.doing is Doing.APPLY else None

    def _take_journal(self, source: _Source, page: JournalPage) -> int | None:
        step = source.cursor.journal(page)
        if step.doing is not Doing.APPLY:
            return None
        if source.shown is None:
            source.shown = self._placements.begin(source.location)
            self._placements.show(source.shown)
        for kind, space, _, hashes in self._runs(page, step.skip):
            self._place(source.shown, kind, space, hashes)
        return page.keys - step.skip

    def _take_snapshot(self, source: _Source, page: SnapshotPage) -> int | None:
        doing = source.cursor.snapshot(page).doing
        if doing is Doing.NOTHING:
            return None
        if doing in (Doing.BEGIN, Doing.WHOLE):
            if source.building is not None:
                self._placements.drop(source.building)
            source.building = self._placements.begin(source.location)
        building = source.building
        assert building is not None, "a page that is not the first follows the first"
        for kind, space, _, hashes in self._runs(page, 0):
            self._place(building, kind, space, hashes)
        if doing in (Doing.COMPLETE, Doing.WHOLE):
            self._placements.show(building)
            source.shown, source.building = building, None
        return page.keys

    def _take_shared(self, source: _Source, backend: Backend, page: Page) -> int | None:
        """Of what all servers have together: there is one generation of it, which outlives its members."""
        cursor, shown = source.cursor, self._shared[backend]
        if isinstance(page, SnapshotPage):
            doing = cursor.snapshot(page).doing
            with self._lock:
                listing = self._listings[backend]
                if doing in (Doing.BEGIN, Doing.WHOLE):
                    listing.begin(page, self._clock.monotonic())
                    self._usage.begin_listing(backend)
                if doing is Doing.NOTHING or not listing.goes_on(page, self._clock.monotonic()):
                    return None
            for _, space, size, hashes in self._runs(page, 0):
                there = self._usage.listed(backend, space, _split(hashes), size or None)
                self._place(shown, Kind.STORE, space, b"".join(there))
            if doing in (Doing.COMPLETE, Doing.WHOLE):
                with self._lock:
                    if not listing.goes_on(page, self._clock.monotonic()):
                        return 0
                    listing.complete(self._clock.monotonic())
                    gone = self._usage.end_listing(backend)
                for key in gone:
                    self._place(shown, Kind.DELETE, key.space, key.chunk_hash)
            return page.keys
        assert isinstance(page, JournalPage)
        if page.first > (cursor.next or 0):
            # The others go on meanwhile: nothing waits for what is missing, and a listing finds it.  What a server did
            # before it joined is found when new backends are listed.
            if cursor.next is not None or not source.is_new or self._lists_new:
                self.needs_listing(backend, reports_are_lost=True)
            cursor.skip_to(page.first)
        step = cursor.journal(page)
        if step.doing is not Doing.APPLY:
            return None
        for kind, space, size, hashes in self._runs(page, step.skip):
            is_unclear = False
            match kind:
                case Kind.STORE:
                    is_unclear = self._usage.store(backend, space, _split(hashes), size, page.instance)
                case Kind.DELETE:
                    is_unclear = self._usage.delete(backend, space, _split(hashes), page.instance)
                case Kind.ACCESS:
                    self._usage.access(backend, space, _split(hashes))
            if is_unclear:
                self.needs_listing(backend, reports_are_lost=False)
            self._place(shown, kind, space, hashes)
        return page.keys - step.skip

    def _place(self, generation: Generation, kind: Kind, space: KeySpace, hashes: bytes) -> None:
        if kind is Kind.STORE:
            self._placements.add(generation, self.spaces.number(space), hashes)
        elif kind is Kind.DELETE:
            self._placements.remove(generation, self.spaces.number(space), hashes)

    def _begin_shared(self, backend: Backend) -> None:
        """Under the lock.  Backends of several types may have one name: those behind the first are shown with the type."""
        if backend in self._shared:
            return
        is_taken = any(backend.name == each.name for each in self._shared)
        name = f"{backend.name} ({backend.kind})" if is_taken else backend.name
        shown = self._placements.begin(Location(SHARED, 0, name))
        self._placements.show(shown)
        self._shared[backend], self._listings[backend] = shown, BackendListing(self._late)
        if self._lists_new:
            self._listings[backend].want()

    def _runs(self, page: Page, skip: int) -> Iterator[tuple[Kind, KeySpace, int, bytes]]:
        """Without the first `skip` keys."""
        for run in page.runs:
            hashes = run.hashes[skip * HASH_BYTES :]
            skip = max(0, skip - run.keys)
            if hashes:
                yield run.kind, page.key_spaces[run.space], run.object_bytes, hashes


def _expected(member: _Member) -> Mapping[str, int]:
    return {name: each.cursor.next for name, each in member.sources.items() if each.cursor.next is not None}


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
