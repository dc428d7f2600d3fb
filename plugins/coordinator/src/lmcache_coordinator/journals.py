"""Takes in what members send: placements for the directory, and usage of shared backends."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_coordinator.registry import UnknownInstanceError
from lmcache_coordinator.usage import Backend, SharedUsage
from lmcache_coordinator.views import Views
from lmcache_core import Clock, KeySpace
from lmcache_fleet.cursor import Cursor, Doing
from lmcache_fleet.messages import HASH_BYTES, FullSync, JournalPage, Kind, Page, SnapshotPage
from lmcache_fleet.placements import Generation, Location, Placements, space_number

SPACES_MAX: Final = 100_000
"""That are found by model and salt: those that changed last."""
FACTS: Final = "##"
VARIANT: Final = "%%"
"""In names of models (engine protocol, "Model names")."""
SHARED: Final = ""
"""In the place of an instance: every server that uses the backend."""


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


ASKED_SECONDS: Final = 10.0
"""Until a listing that was not begun is asked again, of any member."""
PAGE_SECONDS: Final = 60.0
"""Until one is that does not go on."""


class _Listing:
    """Whether a shared backend is to be listed.  Not synchronised."""

    def __init__(self) -> None:
        self._wanted = 0
        self._begun = 0
        """Of what was wanted, what the listing that is under way finds."""
        self._done = 0
        self._asked = ""
        """The member that was asked."""
        self._lister = ("", 0)
        """Whose listing is under way, and its number.  One that began before is of no use any more."""
        self._begun_at = 0.0
        self._ask_at = 0.0
        self._again_at = math.inf

    def want(self, again_at: float = math.inf) -> None:
        """Something is missing of what is known of the backend.  A listing that is under way may be past it.  `again_at`: when
        it is to be listed once more, because reports were lost, and others may bring what is older than the first listing."""
        self._wanted += 1
        self._again_at = min(self._again_at, again_at)

    @property
    def is_wanted(self) -> bool:
        return self._wanted > self._done

    def is_due(self, now: float) -> bool:
        if now >= self._again_at:
            self._again_at = math.inf
            self._wanted += 1
        return self.is_wanted and now >= self._ask_at

    def ask(self, member: str, now: float) -> None:
        self._asked, self._ask_at = member, now + ASKED_SECONDS

    def begin(self, page: SnapshotPage, now: float) -> None:
        self._begun, self._begun_at, self._lister = self._wanted, now, (page.instance, page.snapshot)

    def goes_on(self, page: SnapshotPage, now: float) -> bool:
        """Is this a page of the listing that is under way?"""
        if self._lister != (page.instance, page.snapshot):
            return False
        self._ask_at = now + PAGE_SECONDS
        return True

    def complete(self, now: float) -> None:
        """The next one waits for twice as long as this one took: backends have other work."""
        self._done, self._asked, self._lister = self._begun, "", ("", 0)
        self._ask_at = now + 2 * (now - self._begun_at)

    def has_left(self, member: str) -> bool:
        """Does a listing end with it?"""
        if self._asked == member:
            self._asked, self._ask_at = "", 0.0
        if self._lister[0] != member:
            return False
        self._lister = ("", 0)
        return True


class _Source:
    def __init__(self, location: Location) -> None:
        self.location: Final = location
        self.cursor = Cursor()
        self.shown: Generation | None = None
        self.building: Generation | None = None


class _Member:
    """The journals of one incarnation."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation: Final = incarnation
        self.lock = threading.Lock()  # one page of a member at a time
        self.sources: dict[str, _Source] = {}
        self.has_left = False


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
        """`lists_new`: a shared backend is listed when a member first names it.  `late_seconds`: how long after a change it
        may be reported."""
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
        self._listings: dict[Backend, _Listing] = {}
        self._spaces: dict[KeySpace, int] = {}
        """Their numbers; the one that changed last is last."""
        self._taken_at: float | None = None
        self._tenants: dict[tuple[str, str], dict[KeySpace, int]] = {}
        """The same by the served name of the model, and by salt."""
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
            source = member.sources.get(page.source)
            if source is None:
                source = member.sources[page.source] = _Source(Location(page.instance, page.worker, page.source))
                with self._lock:
                    self._sources = None
            gaps = source.cursor.gaps
            if page.content:
                applied = self._admit(source, page)
            elif page.shared:
                applied = self._take_shared(source.cursor, Backend(page.backend, page.source), page)
            elif isinstance(page, JournalPage):
                applied = self._take_journal(source, page)
            else:
                assert isinstance(page, SnapshotPage)
                applied = self._take_snapshot(source, page)
            self._count(page, applied or 0, source.cursor.gaps - gaps)
            if applied is not None:
                self._views.take(page, page.keys - applied)
            return {name: each.cursor.next for name, each in member.sources.items() if each.cursor.next is not None}

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
            return {name: each.cursor.next for name, each in member.sources.items() if each.cursor.next is not None}

    def join(self, instance: str, incarnation: str) -> None:
        """Its pages are taken in from now on, and no longer those of another incarnation."""
        with self._lock:
            before = self._members.get(instance)
            if before is not None and before.incarnation == incarnation:
                return
            self._members[instance] = _Member(incarnation)
            self._sources = None
        if before is not None:
            self._end(instance, before)

    def forget(self, instance: str) -> None:
        """Everything that this instance has in its own memory and backends is gone from the directory.  O(1) per source."""
        with self._lock:
            member = self._members.pop(instance, None)
            self._sources = None
        if member is not None:
            self._end(instance, member)

    def _end(self, instance: str, member: _Member) -> None:
        with member.lock:
            member.has_left = True
            for source in member.sources.values():
                for generation in (source.shown, source.building):
                    if generation is not None:
                        self._placements.drop(generation)
            self._views.forget(instance)
        with self._lock:
            for backend, listing in self._listings.items():
                if listing.has_left(instance):
                    self._usage.abandon_listing(backend)
                if backend.name in member.sources:
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

    def spaces_of(self, model_name: str, salt: str) -> Mapping[KeySpace, int]:
        """Every space that a member has named, of this model and salt, with its number.  A served name means all that an
        engine makes of it; requests that depend on more than tokens have names of their own."""
        with self._lock:
            spaces = self._tenants.get((served_name(model_name), salt), {})
            is_served_name = served_name(model_name) == model_name
            return {
                space: number
                for space, number in spaces.items()
                if space.model_name == model_name or (is_served_name and VARIANT not in space.model_name)
            }

    def sources(self) -> Mapping[str, Sequence[str]]:
        """By instance.  The same object as before where nothing has changed."""
        with self._lock:
            if (known := self._sources) is None:
                known = self._sources = {instance: list(member.sources) for instance, member in self._members.items()}
            return known

    def needs_listing(self, backend: Backend, reports_are_lost: bool) -> None:
        """Something is missing of what is known of it."""
        with self._lock:
            again_at = self._clock.monotonic() + self._late if reports_are_lost else math.inf
            self._listings.setdefault(backend, _Listing()).want(again_at)

    def to_list(self, instance: str) -> Sequence[FullSync]:
        """Sources that this member is to list now, one member at a time."""
        now = self._clock.monotonic()
        due = []
        with self._lock:
            member = self._members.get(instance)
            for backend, listing in self._listings.items():
                if member is not None and backend.name in member.sources and listing.is_due(now):
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
        """Returns how many of its keys were applied, like the two below; None where it was not admitted."""
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

    def _take_shared(self, cursor: Cursor, backend: Backend, page: Page) -> int | None:
        """Of what all servers have together: there is one generation of it, which outlives its members."""
        shown = self._shared_generation(backend)
        if isinstance(page, SnapshotPage):
            doing = cursor.snapshot(page).doing
            with self._lock:
                listing = self._listings.setdefault(backend, _Listing())
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
            # The others go on meanwhile: nothing waits for what is missing, and a listing finds it.  So it does for what
            # this server did before it joined, and the one before it with this id.
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
            self._placements.add(generation, self._number(space), hashes)
        elif kind is Kind.DELETE:
            self._placements.remove(generation, self._number(space), hashes)

    def _shared_generation(self, backend: Backend) -> Generation:
        with self._lock:
            shown = self._shared.get(backend)
            if shown is None:
                shown = self._shared[backend] = self._placements.begin(Location(SHARED, 0, backend.name))
                self._placements.show(shown)
                listing = self._listings.setdefault(backend, _Listing())
                if self._lists_new:
                    listing.want()
            return shown

    def _runs(self, page: Page, skip: int) -> Iterator[tuple[Kind, KeySpace, int, bytes]]:
        """Without the first `skip` keys."""
        for run in page.runs:
            hashes = run.hashes[skip * HASH_BYTES :]
            skip = max(0, skip - run.keys)
            if hashes:
                yield run.kind, page.key_spaces[run.space], run.object_bytes, hashes

    def _number(self, space: KeySpace) -> int:
        with self._lock:
            number = self._spaces.pop(space, None)
            if number is None:
                number = space_number(space.tail)
                self._tenants.setdefault((served_name(space.model_name), space.cache_salt), {})[space] = number
            self._spaces[space] = number
            if len(self._spaces) > SPACES_MAX:
                self._forget_space(next(iter(self._spaces)))
            return number

    def _forget_space(self, space: KeySpace) -> None:
        del self._spaces[space]
        tenant = (served_name(space.model_name), space.cache_salt)
        del self._tenants[tenant][space]
        if not self._tenants[tenant]:
            del self._tenants[tenant]


def served_name(model_name: str) -> str:
    """Without what an engine adds: its facts, and what a request depends on beside its tokens."""
    return model_name.partition(VARIANT)[0].partition(FACTS)[0]


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
