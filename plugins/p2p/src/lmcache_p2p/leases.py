"""What members have leased of L1: sessions, their lookups, and the ends of both."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final

from lmcache_core import Clock, FaultLog, Inbox, LeasedObject, Storage, TransferChannel
from lmcache_core import ReadLease as Lease
from lmcache_p2p.messages import (
    ABSENT,
    KEYS_MAX,
    NO_TASK,
    NOT_NOW,
    Hello,
    PeerAddress,
    PeerKey,
    lease_secret,
    object_keys,
)

logger = logging.getLogger(__name__)

LEASE_SECONDS_MAX: Final = 60.0
TASKS_MAX: Final = 1024
"""Of one peer: a peer that asks for more has forgotten to end them."""
OPEN_KEYS_MAX: Final = 65_536
"""Of one peer, in all of its tasks."""
_ABSENT: Final = PeerAddress(ABSENT, 0)


class Session:
    """One member that has said hello.  Belongs to the owner's thread."""

    def __init__(self, name: str, boot_id: str, lease_seconds: float) -> None:
        self.name, self.boot_id, self.lease_seconds = name, boot_id, lease_seconds
        self.secret = secrets.token_bytes(32)
        self.tasks: dict[int, Task] = {}
        self.open_keys = 0
        """That they have asked for."""
        self.channels: dict[str, bytes] = {}
        """Descriptions that it was given."""


def _address_of(found: LeasedObject | None) -> PeerAddress:
    if found is None:
        return _ABSENT
    return PeerAddress(found.offset, found.length) if found.length else PeerAddress(NOT_NOW, 0)


class Task:
    """One lookup of a session.  What it has for each key is little: it may be open for long."""

    __slots__ = (
        *("number", "session", "count", "keys", "is_made", "lease", "size_bytes"),
        *("names", "offsets", "lengths", "found", "limited", "left", "asked", "ended", "deadline"),
    )

    def __init__(self, number: int, session: Session, keys: Sequence[PeerKey], deadline: float) -> None:
        self.number, self.session, self.deadline = number, session, deadline
        self.count = len(keys)
        self.keys = keys
        """Until it has its lease."""
        self.is_made = False
        """It has its results: the owner's thread has taken it from the leasing one."""
        self.lease: Lease | None = None
        self.size_bytes = 0
        """What it has of `Leases.leased_bytes`."""
        self.names, self.offsets, self.lengths = array("q"), array("Q"), array("Q")
        """Of each key: a number that follows from it, and where its object lies; of length 0 where it is not leased."""
        self.found: Sequence[PeerAddress] = ()
        """Until they are given."""
        self.limited = 0
        """Objects that are here, beyond what may be leased."""
        self.left = 0
        """Objects that are leased and not unlocked."""
        self.asked = False
        """Its results were given."""
        self.ended = False


class Leases:
    """`run` is the body of a thread, which looks up and seals.  `leased_bytes`, `count` and `stop` are for any thread, the rest
    is for the one that answers peers; `made` wakes it when lookups have their addresses."""

    def __init__(self, storage: Storage, channels: Mapping[str, TransferChannel], max_bytes: int, clock: Clock) -> None:
        self._storage, self._channels, self._max_bytes = storage, channels, max_bytes
        self._faults = FaultLog(logger, clock, "service=p2p")
        self._sessions: dict[bytes, Session] = {}
        """By public key."""
        self._tasks: dict[int, Task] = {}
        self._number = 0
        self._to_lease: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the next one, which both threads change
        self.leased_bytes = 0
        self.made: Inbox[Task] = Inbox()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By peer and by what happened."""

    @property
    def count(self) -> int:
        return len(self._tasks)

    def stop(self) -> None:
        self._to_lease.put(None)

    def session(self, key: bytes) -> Session | None:
        """Of the member with this public key, where it has said hello."""
        return self._sessions.get(key)

    def begin_session(self, key: bytes, name: str, says: Hello) -> Session:
        """In place of the one that it had."""
        self.end_session(key)
        session = Session(name, says.boot_id, min(max(says.lease_seconds, 1.0), LEASE_SECONDS_MAX))
        self._sessions[key] = session
        logger.info("a peer has connected peer=%s", name)
        return session

    def refuse(self, name: str, why: object) -> None:
        """Count a bad request."""
        self.counts[name, "bad"] += 1
        self._faults.warning("a peer's request was refused peer=%s reason=%s", name, why)

    def run(self) -> None:
        """Looks up and seals, off the thread that answers."""
        while (task := self._to_lease.get()) is not None:
            try:
                self._lease(task)
            except Exception:  # noqa: BLE001 - a bug, or a disk: the peer is answered
                self._faults.exception("a lease failed")
            self.made.post(task)

    def _lease(self, task: Task) -> None:
        """All that takes a time for each key is here, so that the thread that answers has time for other peers."""
        keys = object_keys(task.keys)
        task.keys = ()
        if task.ended:
            return
        known = [key for key in keys if key is not None]
        free = max(0, self._max_bytes - self.leased_bytes)
        task.lease = lease = self._storage.lease_reads(task.session.name, known, task.session.lease_seconds, free)
        self._account(task)
        leased = lease.objects
        objects = iter(leased)
        task.found = [_ABSENT if key is None else _address_of(next(objects)) for key in keys]
        task.limited = sum(each is not None and not each.length for each in leased)
        task.names = array("q", map(hash, known))
        task.offsets = array("Q", [each.offset if each else 0 for each in leased])
        task.lengths = array("Q", [each.length if each else 0 for each in leased])

    def _account(self, task: Task) -> None:
        size = 0 if task.lease is None else task.lease.size_bytes
        with self._lock:
            self.leased_bytes += size - task.size_bytes
            task.size_bytes = size

    # --- operations

    def lookup_and_lock(self, session: Session, keys: list[PeerKey], layouts: Any) -> int:
        tasks, open_keys = len(session.tasks), session.open_keys
        if len(keys) > KEYS_MAX or tasks >= TASKS_MAX or open_keys + len(keys) > OPEN_KEYS_MAX:
            self.refuse(session.name, f"{len(keys)} keys, {tasks} open tasks and {open_keys} keys of those")
            return NO_TASK
        self._number += 1
        task = Task(self._number, session, keys, time.monotonic() + session.lease_seconds)
        session.tasks[task.number] = self._tasks[task.number] = task
        session.open_keys += len(keys)
        self.counts[session.name, "asked"] += len(keys)
        self._to_lease.put(task)
        return task.number

    def take(self, task: Task) -> None:
        """It was looked up, or could not be."""
        count = self.counts
        task.is_made = True
        if task.ended or task.lease is None:
            task.found = [_ABSENT] * task.count
            count[task.session.name, "absent"] += task.count
            self._release(task)
            return
        task.left = sum(length > 0 for length in task.lengths)
        count[task.session.name, "leased"] += task.left
        count[task.session.name, "limited"] += task.limited
        count[task.session.name, "absent"] += task.count - task.left - task.limited
        if task.left:
            self._expose(task)
        else:
            self._end(task, forget=False)

    def _expose(self, task: Task) -> None:
        extents = [(offset, length) for offset, length in zip(task.offsets, task.lengths, strict=True) if length]
        for channel in self._channels.values():
            channel.expose(lease_secret(task.session.secret, task.number), extents)

    def give(self, task: Task) -> Sequence[PeerAddress]:
        """Its results, once."""
        found, task.found, task.asked = task.found, (), True
        if task.ended:
            self.forget(task)
        return found

    def renew(self, session: Session, number: int) -> bool:
        task = session.tasks.get(number)
        if task is None:
            self.refuse(session.name, f"task {number} is not there")
            return False
        if task.lease is None or not task.lease.renew(session.lease_seconds):
            return False
        task.deadline = time.monotonic() + session.lease_seconds
        return True

    def end_task(self, session: Session, number: int) -> None:
        task = session.tasks.get(number)
        if task is None:
            self.refuse(session.name, f"task {number} is not there")
        else:
            self._end(task)

    def unlock_objects(self, session: Session, keys: list[PeerKey]) -> None:
        """Each mention releases one lease of its object, the oldest: lookups overlap."""
        wanted = Counter(hash(key) for key in object_keys(keys) if key is not None)
        for task in [task for task in session.tasks.values() if task.asked]:
            released = []
            for place, (name, length) in enumerate(zip(task.names, task.lengths, strict=True)):
                if length and wanted.get(name, 0):
                    wanted[name] -= 1
                    task.lengths[place] = 0
                    released.append(place)
            if released and task.lease is not None:
                task.lease.release(released)
                self._account(task)
                task.left -= len(released)
                if task.left:
                    self._expose(task)
                else:
                    self._end(task)

    # --- ends

    def _hide(self, task: Task) -> None:
        for channel in self._channels.values():
            channel.hide(lease_secret(task.session.secret, task.number))

    def _end(self, task: Task, forget: bool = True) -> None:
        task.ended, task.keys = True, ()
        self._hide(task)
        self._release(task)
        if forget:
            self.forget(task)

    def _release(self, task: Task) -> None:
        if task.lease is not None:
            task.lease.end()
        self._account(task)

    def forget(self, task: Task) -> None:
        if self._tasks.pop(task.number, None) is not None:
            del task.session.tasks[task.number]
            task.session.open_keys -= task.count

    def end_session(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            for task in list(session.tasks.values()):
                self._end(task)
            for name, description in session.channels.items():
                self._channels[name].withdraw(description)
            logger.info("a peer's session has ended peer=%s", session.name)

    def expire(self, now: float) -> float:
        """Returns the next deadline."""
        for task in [task for task in self._tasks.values() if task.deadline <= now]:
            self.counts[task.session.name, "expired"] += task.left
            self._end(task)
        return min((task.deadline for task in self._tasks.values()), default=math.inf)

    def end_all(self) -> None:
        for task in list(self._tasks.values()):
            self._end(task)
