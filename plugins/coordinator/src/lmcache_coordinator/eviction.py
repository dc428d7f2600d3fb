"""Keeps salts within their quotas: picks victims, lets servers delete them, and believes only what comes back."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from lmcache_coordinator.pins import Pins
from lmcache_coordinator.posted_events import BACKEND as POSTED
from lmcache_coordinator.quotas import Quotas
from lmcache_coordinator.registry import Instance, Registry, is_poster
from lmcache_coordinator.usage import Backend, SharedUsage, Victim
from lmcache_core import ObjectKey
from lmcache_fleet.messages import COMMAND_KEYS_MAX, DeleteKeys

logger = logging.getLogger(__name__)

WAITED_INTERVALS: Final = 3
"""Until a victim that did not come back is sent again."""
REFUSED_INTERVALS: Final = 10
"""For which a member that did not delete is not asked, where another one can be."""
REPLY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of the commands in one reply: members read up to four times as much, and share the work."""
_COMMAND_BYTES: Final = 64
"""Names of a command's fields, and a little."""


class _Slice:
    """Victims that one server deletes."""

    def __init__(self, command: DeleteKeys, victims: set[Victim], backend: Backend) -> None:
        self.command: Final = command
        self.size: Final = _COMMAND_BYTES + len(command.source) + len(command.space) + len(command.hashes)
        self.backend: Final = backend
        self.victims = victims
        """Those that did not come back."""
        self.member = ""
        """Who deletes them; empty: they are offered to all that may."""
        self.interval = 0
        """In which it began to."""


class Eviction:
    """`run` and `settle` are called by one thread; the rest by any."""

    def __init__(
        self,
        usage: SharedUsage,
        quotas: Quotas,
        registry: Registry,
        pins: Pins,
        ratio: float,
        watermark: float,
        may_evict: Callable[[], bool],
        users: Callable[[], Mapping[Backend, Collection[str]]],
        begin_http: Callable[[Instance, Sequence[ObjectKey], Callable[[], None]], bool],
    ) -> None:
        """`may_evict`: is this the coordinator that evicts, at this moment?  `users`: instances whose journals name a backend.
        `begin_http` asks a server that keeps none, says whether it can at this moment, and calls its last argument where
        the server does not delete."""
        self._usage = usage
        self._quotas = quotas
        self._registry = registry
        self._pins = pins
        self._ratio = ratio
        self._watermark = watermark
        self._may_evict = may_evict
        self._users = users
        self._begin_http = begin_http
        self._chooser = random.SystemRandom()
        self._lock = threading.Lock()  # guards all below
        self._slices: list[_Slice] = []
        self._interval = 0
        self._refused: dict[tuple[str, Backend], int] = {}
        """Members that did not delete, with the interval."""
        self._may: dict[Backend, set[str]] = {}
        """Members that are asked in this interval: none that refused, unless all have.  What is in other backends is not
        counted: no server uses them now."""
        self.ignored = 0
        """Intervals in a row in which no member took anything of what was offered."""
        self.sent = 0
        self.sent_again = 0
        """Of those sent: refused, or not waited for any longer, also because another coordinator evicts now."""
        self.deleted: Counter[str] = Counter()
        """Objects that came back as deleted, by salt, of those that have objects or a quota."""
        self.deleted_ever = 0
        """Of all salts."""

    def run(self) -> int:
        """One interval.  Returns how many victims servers are to delete.  Raises StateUnavailableError."""
        if not self._may_evict():
            with self._lock:
                self.sent_again += sum(len(each.victims) for each in self._slices if each.member)
                self._slices, self.ignored = [], 0
            return 0
        table = self._quotas.read()
        if not table.were_set:
            return 0
        live = self._registry.live()
        if not live:
            return 0
        leaving = self._begin(live)
        by_backend: dict[Backend, list[ObjectKey]] = {}
        for salt, used in self._usage.by_salt(self._may).items():
            for backend, key in self._of(salt, used, table.limit(salt), leaving.get(salt, set())):
                by_backend.setdefault(backend, []).append(key)
        return sum(len(keys) for backend, keys in by_backend.items() if self._offer(backend, keys, live))

    def _begin(self, live: Sequence[Instance]) -> Mapping[str, set[Victim]]:
        """A new interval: what was not taken is decided anew.  Returns what is under way, by salt."""
        users = {backend: {each.instance_id for each in live} & {*ids} for backend, ids in self._users().items()}
        users[POSTED] = {each.instance_id for each in live if is_poster(each)}
        leaving: dict[str, set[Victim]] = {}
        with self._lock:
            self._interval += 1
            taken = [each for each in self._slices if each.member]
            self.ignored = self.ignored + 1 if len(taken) < len(self._slices) else 0
            late = [each for each in taken if self._interval - each.interval >= WAITED_INTERVALS]
            for each in late:
                self._refused[each.member, each.backend] = self._interval
                self.sent_again += len(each.victims)
            self._slices = [each for each in taken if each not in late]
            self._refused = {
                who: interval
                for who, interval in self._refused.items()
                if self._interval - interval < REFUSED_INTERVALS
            }
            self._may = {
                backend: {each for each in ids if (each, backend) not in self._refused} or ids
                for backend, ids in users.items()
                if ids
            }
            for each in self._slices:
                for victim in each.victims if each.backend in self._may else ():
                    leaving.setdefault(victim.key.space.cache_salt, set()).add(victim)
        return leaving

    def _of(self, salt: str, used: int, limit: int | None, leaving: set[Victim]) -> Sequence[Victim]:
        """`leaving`: what is under way is as good as gone, and not to be replaced by others."""
        if limit is None:
            return ()
        left = used - self._usage.size_of(leaving)
        if left <= self._watermark * limit:
            return ()
        keys = math.ceil(self._ratio * self._usage.keys_of(salt, self._may))
        size = left - math.floor(self._watermark * limit)
        return self._usage.victims(salt, keys, size, leaving, self._pins.has, self._may)

    def _offer(self, backend: Backend, keys: Sequence[ObjectKey], live: Sequence[Instance]) -> bool:
        """To all servers that use the backend; one that keeps no journals is asked.  False: there is none at this moment."""
        may = self._may[backend]
        if not may:
            return False
        slices = list(_sliced(backend, keys))
        if backend == POSTED:
            chosen = self._chooser.choice([each for each in live if each.instance_id in may])
            if not self._begin_http(chosen, keys, lambda: self.failed(chosen.instance_id, backend.name)):
                return False
        with self._lock:
            self._slices += slices
            if backend == POSTED:
                self._take(chosen.instance_id, slices)
        return True

    def _take(self, member: str, slices: Sequence[_Slice]) -> None:
        """Under the lock."""
        for each in slices:
            each.member, each.interval = member, self._interval
        objects = sum(len(each.victims) for each in slices)
        self.sent += objects
        self.ignored = 0
        backend = slices[0].backend.name or "posted"
        logger.info(
            "objects over quota are deleted by a server instance=%s backend=%s objects=%d", member, backend, objects
        )

    def commands(self, member: str) -> Sequence[DeleteKeys]:
        """What this member is to delete: the first one that asks does it.  Each command once: what is lost is sent again."""
        if not self._slices or not any(member in may for may in self._may.values()):
            return ()  # without the lock
        if not self._may_evict():
            return ()
        chosen, size = list[_Slice](), 0
        with self._lock:
            for each in self._slices:
                if each.member or each.backend == POSTED or member not in self._may.get(each.backend, ()):
                    continue
                size += each.size
                if chosen and size > REPLY_BYTES_MAX:
                    break
                chosen.append(each)
            if chosen:
                self._take(member, chosen)
        return [each.command for each in chosen]

    def failed(self, member: str, source: str) -> None:
        """This member does not delete from this source: others are asked at once."""
        with self._lock:
            for backend, may in self._may.items():
                if backend.name == source:
                    self._refused[member, backend] = self._interval
                    may.discard(member)
            for each in self._slices:
                if each.member == member and each.backend.name == source:
                    self.sent_again += len(each.victims)
                    each.member = ""
        logger.warning("a server did not delete objects over quota instance=%s backend=%s", member, source or "posted")

    @property
    def waiting(self) -> int:
        """sent = sent_again + deleted_ever + waiting"""
        with self._lock:
            return sum(len(each.victims) for each in self._slices if each.member)

    def settle(self) -> None:
        """Forget what has come back, and what members that have left were to delete."""
        live = {instance.instance_id for instance in self._registry.live()}
        used = self._usage.by_salt()
        with self._lock:
            taken = [each for each in self._slices if each.member]
        # without the lock, which answers to members wait for
        left = [{victim for victim in each.victims if self._usage.has(victim)} for each in taken]
        with self._lock:
            for each, victims in zip(taken, left, strict=True):
                if not each.member:
                    continue  # it has failed meanwhile
                gone = each.victims - victims
                each.victims = victims
                self.deleted_ever += len(gone)
                self.deleted.update(victim.key.space.cache_salt for victim in gone)
                if each.member not in live:
                    self.sent_again += len(victims)
                    each.victims = set()
            self._slices = [each for each in self._slices if each.victims]
            for salt in self.deleted.keys() - used.keys() - self._quotas.last.limits.keys():
                del self.deleted[salt]


def _sliced(backend: Backend, keys: Sequence[ObjectKey]) -> Iterator[_Slice]:
    by_space: dict[bytes, list[ObjectKey]] = {}
    for key in keys:
        by_space.setdefault(key.space.tail, []).append(key)
    for tail, of_space in by_space.items():
        for at in range(0, len(of_space), COMMAND_KEYS_MAX):
            part = of_space[at : at + COMMAND_KEYS_MAX]
            command = DeleteKeys(backend.name, tail, b"".join(key.chunk_hash for key in part))
            yield _Slice(command, {Victim(backend, key) for key in part}, backend)
