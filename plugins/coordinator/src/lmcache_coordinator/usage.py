"""What tenants have in L2 backends that servers share: exact bytes, and the order in which objects would go.

An object counts once, however many servers report it.  One that a server stored in a backend of its own is not here.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from lmcache_core import (
    AccessFacts,
    Clock,
    EvictionDemand,
    EvictionPolicy,
    InsertFacts,
    KeySpace,
    ObjectKey,
    RequestFacts,
)


class Backend(NamedTuple):
    """A shared backend: adapters with the same name and type are one, on whatever server they are."""

    kind: str
    name: str


class Reported(NamedTuple):
    """When a change was reported, and by whom."""

    at: float
    by: str


_NEVER: Final = Reported(-math.inf, "")
_SEVERAL: Final = ""
"""In the place of a member's id."""


class Victim(NamedTuple):
    backend: Backend
    key: ObjectKey


class _Objects:
    """Of one salt in one backend: numbered, because policies know numbers.  Not synchronised."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy: Final = policy
        self.numbers: dict[ObjectKey, int] = {}
        self._keys: list[ObjectKey | None] = []
        self._sizes = array("Q")
        self._seen = array("Q")
        self._free: list[int] = []
        self._usual: dict[KeySpace, int] = {}
        self.reported: dict[int, Reported] = {}
        """Stores of the last time, by number, the oldest first."""
        self.used_bytes = 0

    def store(self, space: KeySpace, hashes: Iterable[bytes], size: int | None, epoch: int, seconds: float) -> None:
        """None: as large as the last one of its space, if it is new."""
        if size is None:
            usual = self._usual.get(space, 0)
        else:
            usual = self._usual[space] = size
        new: dict[int, ObjectKey] = {}
        known = []
        for chunk_hash in hashes:
            key = ObjectKey(space, chunk_hash)
            number = self.numbers.get(key)
            if number is None:
                number = self._take(key, usual)
                new[number] = key
            else:
                known.append(number)
                if size is not None and size != self._sizes[number]:
                    self.used_bytes += size - self._sizes[number]
                    self._sizes[number] = size
            self._seen[number] = epoch
        facts = RequestFacts(seconds=seconds)
        if new:
            keys = tuple(key.chunk_hash for key in new.values())
            self.policy.on_insert(list(new), InsertFacts(max(1, usual), space, 0, keys, facts))
        if known:
            self.policy.on_access(known, AccessFacts(0, facts))

    def access(self, space: KeySpace, hashes: Iterable[bytes], seconds: float) -> None:
        numbers = [self.numbers[key] for each in hashes if (key := ObjectKey(space, each)) in self.numbers]
        if numbers:
            self.policy.on_access(numbers, AccessFacts(0, RequestFacts(seconds=seconds)))

    def delete(self, keys: Iterable[ObjectKey]) -> int:
        gone = [number for key in keys if (number := self.numbers.pop(key, None)) is not None]
        for number in gone:
            self.reported.pop(number, None)
            self.used_bytes -= self._sizes[number]
            self._keys[number] = None
            self._free.append(number)
        if gone:
            self.policy.on_remove(gone)
        return len(gone)

    def is_seen(self, key: ObjectKey, epoch: int) -> bool:
        """Was it stored or listed since this epoch began?"""
        number = self.numbers.get(key)
        return number is not None and self._seen[number] >= epoch

    def older_than(self, epoch: int) -> list[ObjectKey]:
        return [key for key, number in self.numbers.items() if self._seen[number] < epoch]

    def key(self, number: int) -> ObjectKey | None:
        return self._keys[number] if 0 <= number < len(self._keys) else None

    def size(self, number: int) -> int:
        return self._sizes[number]

    def _take(self, key: ObjectKey, size: int) -> int:
        if self._free:
            number = self._free.pop()
            self._keys[number], self._sizes[number] = key, size
        else:
            number = len(self._keys)
            self._keys.append(key)
            self._sizes.append(size)
            self._seen.append(0)
        self.numbers[key] = number
        self.used_bytes += size
        return number


class SharedUsage:
    """Safe from any thread."""

    def __init__(self, new_policy: Callable[[], EvictionPolicy], clock: Clock, late_seconds: float = 30.0) -> None:
        """`late_seconds`: how long after a change it may be reported."""
        self._new_policy = new_policy
        self._clock = clock
        self._late = late_seconds
        self._lock = threading.Lock()  # guards all below
        self._objects: dict[str, dict[Backend, _Objects]] = {}
        """By salt.  Those that have none are not in it."""
        self._epochs: dict[Backend, int] = {}
        self._listing: dict[Backend, set[ObjectKey]] = {}
        """Backends that are being listed, with what was deleted meanwhile."""
        self._deleted: dict[Victim, Reported] = {}
        """Deletes of the last time, the oldest first."""

    def store(self, backend: Backend, space: KeySpace, hashes: Sequence[bytes], size: int, by: str = "") -> bool:
        """True: another member than `by` has reported a delete of one of them, and which came first is not known."""
        now = self._clock.monotonic()
        with self._lock:
            objects = self._of(backend, space.cache_salt)
            objects.store(space, hashes, size, self._epochs.get(backend, 0), now)
            keys = [ObjectKey(space, each) for each in hashes]
            if (deleted := self._listing.get(backend)) is not None:
                deleted.difference_update(keys)
            self._forget_old(self._deleted, now)
            self._forget_old(objects.reported, now)
            is_unclear = False
            for key in keys:
                is_unclear |= self._deleted.get(Victim(backend, key), Reported(0, by)).by != by
                number = objects.numbers[key]
                objects.reported[number] = self._merged(objects.reported.pop(number, _NEVER), by, now)
            return is_unclear

    def access(self, backend: Backend, space: KeySpace, hashes: Sequence[bytes]) -> None:
        with self._lock:
            objects = self._objects.get(space.cache_salt, {}).get(backend)
            if objects is not None:
                objects.access(space, hashes, self._clock.monotonic())

    def delete(self, backend: Backend, space: KeySpace, hashes: Sequence[bytes], by: str = "") -> bool:
        """True: another member than `by` has reported a store of one of them, and which came first is not known."""
        now = self._clock.monotonic()
        keys = [ObjectKey(space, each) for each in hashes]
        with self._lock:
            if (deleted := self._listing.get(backend)) is not None:
                deleted.update(keys)
            objects = self._of(backend, space.cache_salt)
            self._forget_old(self._deleted, now)
            self._forget_old(objects.reported, now)
            is_unclear = False
            for key in keys:
                stored = objects.reported.get(objects.numbers.get(key, -1), _NEVER)
                is_unclear |= now - stored.at <= self._late and stored.by != by
                victim = Victim(backend, key)
                self._deleted[victim] = self._merged(self._deleted.pop(victim, _NEVER), by, now)
            self._delete(backend, space.cache_salt, objects, keys)
            return is_unclear

    def _merged(self, before: Reported, by: str, now: float) -> Reported:
        return Reported(now, by if before.by == by or now - before.at > self._late else _SEVERAL)

    def _forget_old(self, reported: dict[Any, Reported], now: float) -> None:
        """The oldest is first."""
        while reported:
            oldest = next(iter(reported))
            if now - reported[oldest].at <= self._late:
                return
            del reported[oldest]

    def begin_listing(self, backend: Backend) -> None:
        """A listing of the backend comes, in pages, while servers go on.  An unfinished one is abandoned."""
        with self._lock:
            self._epochs[backend] = self._epochs.get(backend, 0) + 1
            self._listing[backend] = set()

    def listed(self, backend: Backend, space: KeySpace, hashes: Sequence[bytes], size: int | None) -> list[bytes]:
        """A part of a page.  What was deleted or stored since the listing began is left out: the page may be older.  Returns
        the others."""
        with self._lock:
            deleted = self._listing.get(backend)
            if deleted is None:
                return []
            objects, epoch = self._of(backend, space.cache_salt), self._epochs[backend]
            keys = [ObjectKey(space, each) for each in hashes]
            there = [key.chunk_hash for key in keys if key not in deleted and not objects.is_seen(key, epoch)]
            if there:
                objects.store(space, there, size, epoch, self._clock.monotonic())
            elif not objects.numbers:
                self._forget(backend, space.cache_salt)
            return there

    def end_listing(self, backend: Backend) -> list[ObjectKey]:
        """The listing is whole: what it did not have, and was not stored since it began, is gone.  Returns that."""
        gone: list[ObjectKey] = []
        with self._lock:
            if self._listing.pop(backend, None) is None:
                return gone
            for salt, backends in list(self._objects.items()):
                if (objects := backends.get(backend)) is not None:
                    older = objects.older_than(self._epochs[backend])
                    self._delete(backend, salt, objects, older)
                    gone += older
        return gone

    def abandon_listing(self, backend: Backend) -> None:
        """The rest of it does not come."""
        with self._lock:
            self._listing.pop(backend, None)

    def forget(self, backend: Backend) -> None:
        """No server uses it any more."""
        with self._lock:
            for salt, backends in list(self._objects.items()):
                if backend in backends:
                    self._forget(backend, salt)
            self._epochs.pop(backend, None)
            self._listing.pop(backend, None)

    def by_salt(self, only: Container[Backend] | None = None) -> Mapping[str, int]:
        """Bytes of each salt that has any, in these backends; None: in all."""
        used: dict[str, int] = {}
        with self._lock:
            for salt, backends in self._objects.items():
                for backend, objects in backends.items():
                    if objects.numbers and (only is None or backend in only):
                        used[salt] = used.get(salt, 0) + objects.used_bytes
        return used

    def by_backend(self) -> Mapping[Backend, tuple[int, int]]:
        """Keys and bytes of each shared backend."""
        used: dict[Backend, tuple[int, int]] = {}
        with self._lock:
            for backend, objects in self._all():
                keys, size = used.get(backend, (0, 0))
                used[backend] = keys + len(objects.numbers), size + objects.used_bytes
        return used

    def page(self, backend: str | None, offset: int, limit: int) -> tuple[int, list[tuple[Backend, ObjectKey, int]]]:
        """How many objects there are, and some of them with their sizes."""
        total, page = 0, list[tuple[Backend, ObjectKey, int]]()
        with self._lock:
            for of, objects in self._all():
                if backend not in (None, of.name):
                    continue
                begin = max(0, offset - total)
                wanted = islice(objects.numbers.items(), begin, begin + limit - len(page))
                page += [(of, key, objects.size(number)) for key, number in wanted]
                total += len(objects.numbers)
        return total, page

    def keys_of(self, salt: str, only: Container[Backend] | None = None) -> int:
        with self._lock:
            return sum(
                len(objects.numbers)
                for backend, objects in self._objects.get(salt, {}).items()
                if only is None or backend in only
            )

    def has(self, victim: Victim) -> bool:
        with self._lock:
            objects = self._objects.get(victim.key.space.cache_salt, {}).get(victim.backend)
            return objects is not None and victim.key in objects.numbers

    def size_of(self, victims: Iterable[Victim]) -> int:
        """Bytes of those that are there."""
        size = 0
        with self._lock:
            for backend, key in victims:
                objects = self._objects.get(key.space.cache_salt, {}).get(backend)
                if objects is not None and (number := objects.numbers.get(key)) is not None:
                    size += objects.size(number)
        return size

    def victims(
        self,
        salt: str,
        keys: int,
        size: int,
        spared: Collection[Victim],
        is_pinned: Callable[[ObjectKey], bool] = lambda _: False,
        only: Container[Backend] | None = None,
    ) -> list[Victim]:
        """Objects of this salt in the order of its policy: at least this many, and at least this many bytes, as far as there
        are any in these backends.  Never one that is `spared` or pinned."""
        found: list[Victim] = []
        found_bytes = 0
        with self._lock:
            for backend, objects in self._objects.get(salt, {}).items():
                if only is not None and backend not in only:
                    continue
                everything = EvictionDemand(objects.used_bytes or len(objects.numbers), {})

                def may_evict(number: int, backend: Backend = backend, objects: _Objects = objects) -> bool:
                    key = objects.key(number)
                    return key is not None and Victim(backend, key) not in spared and not is_pinned(key)

                for number in objects.policy.victims(everything, may_evict):
                    if len(found) >= keys and found_bytes >= size:
                        break
                    key = objects.key(number)
                    if key is None:
                        continue
                    found.append(Victim(backend, key))
                    objects.reported.pop(number, None)  # what was stored so far comes before the delete
                    found_bytes += objects.size(number)
        return found

    def _delete(self, backend: Backend, salt: str, objects: _Objects, keys: Iterable[ObjectKey]) -> None:
        objects.delete(keys)
        if not objects.numbers:
            self._forget(backend, salt)  # salts come and go

    def _forget(self, backend: Backend, salt: str) -> None:
        del self._objects[salt][backend]
        if not self._objects[salt]:
            del self._objects[salt]

    def _all(self) -> Iterator[tuple[Backend, _Objects]]:
        return (each for backends in self._objects.values() for each in backends.items())

    def _of(self, backend: Backend, salt: str) -> _Objects:
        backends = self._objects.get(salt, {})
        objects = backends.get(backend)
        if objects is None:
            objects = backends[backend] = _Objects(self._new_policy())
            self._objects[salt] = backends
        return objects
