"""What members have leased of L1: sessions, their lookups, and the ends of both."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final

from lmcache_core import Clock, FaultLog, Inbox, LeasedObject, ObjectKey, Storage, TransferChannel
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
_ABSENT: Final = PeerAddress(ABSENT, 0)


class Session:
    """One member that has said hello.  Belongs to the owner's thread."""

    def __init__(self, name: str, boot_id: str, lease_seconds: float) -> None:
        self.name, self.boot_id, self.lease_seconds = name, boot_id, lease_seconds
        self.secret = secrets.token_bytes(32)
        self.tasks: dict[int, Task] = {}
        self.channels: dict[str, bytes] = {}
        """Descriptions that it was given."""


def _address_of(found: LeasedObject | None) -> PeerAddress:
    if found is None:
        return _ABSENT
    return PeerAddress(found.offset, found.length) if found.length else PeerAddress(NOT_NOW, 0)


class Task:
    """One lookup of a session.  `lease` is None until the leasing thread has made it, with `keys`, `found` and `extents`."""

    def __init__(self, number: int, session: Session, asked: Sequence[PeerKey]) -> None:
        self.number, self.session, self.asked_for = number, session, asked
        self.keys: Sequence[ObjectKey | None] = ()
        self.found: list[PeerAddress] = []
        self.extents: list[tuple[int, int]] = []
        self.lease: Lease | None = None
        self.addresses: list[PeerAddress] | None = None
        self.asked = False
        """Its results were given."""
        self.ended = False
        self.deadline = 0.0
        self.left = 0
        """Objects that are leased and not unlocked."""


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
        self.made: Inbox[Task] = Inbox()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By peer and by what happened."""

    @property
    def leased_bytes(self) -> int:
        return sum(task.lease.size_bytes for task in list(self._tasks.values()) if task.lease is not None)

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
        task.keys = object_keys(task.asked_for)
        known = [key for key in task.keys if key is not None]
        free = max(0, self._max_bytes - self.leased_bytes)
        lease = self._storage.lease_reads(task.session.name, known, task.session.lease_seconds, free)
        objects = iter(lease.objects)
        found = [None if key is None else next(objects) for key in task.keys]
        task.found = [_address_of(each) for each in found]
        task.extents = [(each.offset, each.size) for each in task.found if each.size]
        task.lease = lease

    # --- operations

    def lookup_and_lock(self, session: Session, keys: list[PeerKey], layouts: Any) -> int:
        if len(keys) > KEYS_MAX or len(session.tasks) >= TASKS_MAX:
            self.refuse(session.name, f"{len(keys)} keys and {len(session.tasks)} open tasks")
            return NO_TASK
        self._number += 1
        task = Task(self._number, session, keys)
        session.tasks[task.number] = self._tasks[task.number] = task
        task.deadline = time.monotonic() + session.lease_seconds
        self.counts[session.name, "asked"] += len(keys)
        self._to_lease.put(task)
        return task.number

    def take(self, task: Task) -> None:
        if task.ended or task.lease is None:
            task.addresses = [_ABSENT] * len(task.asked_for)
            self.counts[task.session.name, "absent"] += len(task.asked_for)
            if task.lease is not None:
                task.lease.end()
            return
        task.addresses = task.found
        task.left = len(task.extents)
        self.counts[task.session.name, "leased"] += task.left
        self.counts[task.session.name, "absent"] += len(task.keys) - task.left
        self._expose(task)
        if not task.left:
            self._end(task, forget=False)

    def _expose(self, task: Task) -> None:
        for channel in self._channels.values():
            if task.extents:
                channel.expose(lease_secret(task.session.secret, task.number), task.extents)

    def renew(self, session: Session, number: int) -> bool:
        task = session.tasks.get(number)
        if task is None or task.lease is None or not task.lease.renew(session.lease_seconds):
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
        wanted = {key for key in object_keys(keys) if key is not None}
        for task in list(session.tasks.values()):
            if task.lease is None or task.addresses is None:
                continue
            known = [key for key in task.keys if key is not None]
            released = [place for place, key in enumerate(known) if key in wanted]
            if not released:
                continue
            task.lease.release(released)
            for place, key in enumerate(task.keys):
                if key in wanted and task.addresses[place].size:
                    task.addresses[place] = _ABSENT
                    task.left -= 1
            task.extents = [(each.offset, each.size) for each in task.addresses if each.size]
            self._hide(task)
            self._expose(task)
            if not task.left:
                self._end(task)

    # --- ends

    def _hide(self, task: Task) -> None:
        for channel in self._channels.values():
            channel.hide(lease_secret(task.session.secret, task.number))

    def _end(self, task: Task, forget: bool = True) -> None:
        task.ended = True
        self._hide(task)
        if task.lease is not None:
            task.lease.end()
        if forget:
            self.forget(task)

    def forget(self, task: Task) -> None:
        task.session.tasks.pop(task.number, None)
        self._tasks.pop(task.number, None)

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
