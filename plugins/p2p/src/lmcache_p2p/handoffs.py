"""The operations of hand-offs: between engines of this server, and from engines of other servers to those of this one."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pydantic import Field

from lmcache_client.handoff import (
    CANCELLED,
    COMPLETE,
    HANDOFF_CANCEL,
    HANDOFF_CHUNK,
    HANDOFF_COMPLETE,
    HANDOFF_ENGINE,
    HANDOFF_FOLLOW,
    HANDOFF_OPEN,
    HANDOFF_WAIT,
    HASH_BYTES,
    ID_CHARS_MAX,
    OPEN,
    UNKNOWN,
    HandoffState,
)
from lmcache_core import (
    DEFERRED,
    Call,
    EngineKey,
    Handler,
    HandlerMode,
    ModuleContext,
    PluginSettings,
    ProtocolError,
    RequestModule,
    Shard,
    SpaceFields,
    registered_shards,
)

HANDOFFS_MAX: Final = 16_384
"""Remembered; beyond it the one that changed first is forgotten."""
HASHES_BYTES_MAX: Final = 64 << 20
"""Of all that are remembered."""
FOLLOWED_MAX: Final = 1024
"""Of other servers, at one time."""
WAITERS_MAX: Final = 1024
"""Requests that wait, for all hand-offs together."""
WAIT_MAX_SECONDS: Final = 300.0
ENGINES_MAX: Final = 64
"""Whose addresses are known; beyond it the one that was said first is forgotten."""
URL_CHARS_MAX: Final = 256
ROLES: Final = {"producer": ("prefill_urls",), "receiver": ("decode_urls",), "both": ("prefill_urls", "decode_urls")}
"""Of engines, and where a server's registration in a fleet has their addresses."""


class HandoffSettings(PluginSettings):
    seconds: float = Field(60.0, gt=0, le=3600, allow_inf_nan=False)


class HandoffFlags(PluginSettings):
    """Prefill and decode."""

    pd_handoff_seconds: float = Field(
        60.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds without news after which a hand-off from prefill to decode is forgotten.",
    )


def apply(values: HandoffFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    return {"request_module:handoffs": {"seconds": values.pd_handoff_seconds}} if given else {}


@dataclass(slots=True)
class _Handoff:
    changed_at: float
    state: str = UNKNOWN
    chunks: int = 0
    hashes: bytes = b""
    """Of all chunks of its prompt."""
    world_size: int = 0
    """Of the engine that prefills."""

    def said(self, known: int) -> HandoffState:
        """What one hears of it that knows the first `known` chunks."""
        hashes = self.hashes[max(0, known) * HASH_BYTES : self.chunks * HASH_BYTES]
        return HandoffState(self.state, self.chunks, hashes, self.world_size if hashes else 0)

    def says_more(self, known: int) -> bool:
        if self.state == UNKNOWN:
            return False
        return self.state != OPEN or self.chunks > known


class Waiting(Protocol):
    """What a waiter may be: the call of an engine, or a peer that subscribes."""

    def defer(self, seconds: float, fallback: Any) -> None: ...

    def reply(self, result: Any) -> bool: ...


class _Waiter(NamedTuple):
    call: Waiting
    known: int
    """The count that it knows."""
    until: float
    """When it is answered in any case."""


class Follower(Protocol):
    """Follows hand-offs of other servers (`followed.Follower`)."""

    def start(
        self,
        handoff_id: str,
        server: str,
        known: int,
        world_size: int,
        shards: tuple[Shard, ...],
        hashes: Sequence[bytes],
    ) -> bool:
        """False where it cannot.  Otherwise `HandoffModule.over` is called once, later.  Any thread."""


class HandoffModule(RequestModule):
    """Any connection may name any hand-off: an id that cannot be guessed is for the engines to choose.  Any thread."""

    def __init__(self, settings: HandoffSettings, context: ModuleContext) -> None:
        self._seconds = settings.seconds
        self._context = context
        self._clock = context.clock
        self._lock = threading.Lock()
        self._handoffs: OrderedDict[str, _Handoff] = OrderedDict()
        """By id, the one that changed last at the end."""
        self._hash_bytes = 0
        self._waiters: dict[str, list[_Waiter]] = {}
        self._waiting = 0
        """How many those are, with some whose time is over."""
        self._followed: set[str] = set()
        """Those of other servers."""
        self._engines: dict[str, str] = {}
        """Roles by URL."""
        self.follower: Follower | None = None
        """Set by the service of peers, where there is one."""
        self._counts: Counter[str] = Counter()

    def handlers(self) -> Sequence[Handler]:
        inline, ordered = HandlerMode.INLINE, HandlerMode.ORDERED
        return [
            Handler(HANDOFF_OPEN, self.open, ordered, may_be_refused=False),
            Handler(HANDOFF_CHUNK, self.chunk, ordered, may_be_refused=False),
            Handler(HANDOFF_COMPLETE, self.complete, ordered, may_be_refused=False),
            Handler(HANDOFF_CANCEL, self.cancel, ordered, may_be_refused=False),
            Handler(HANDOFF_WAIT, self.wait, inline),
            Handler(HANDOFF_FOLLOW, self.follow, ordered),
            Handler(HANDOFF_ENGINE, self.engine, ordered, may_be_refused=False),
        ]

    def status(self) -> dict[str, object]:
        with self._lock:
            states = Counter(handoff.state for handoff in self._handoffs.values())
            named = {
                name: [url for url, role in self._engines.items() if name in ROLES[role]]
                for name in ("prefill_urls", "decode_urls")
            }
            return {
                "handoffs": dict(states),
                "followed": len(self._followed),
                "counts": dict(self._counts),
                "member_metadata": {name: urls for name, urls in named.items() if urls},
            }

    def engine(self, call: Call, url: str, role: str) -> None:
        """An engine with this address has a role, or none any more.  Raises ProtocolError."""
        if role and role not in ROLES:
            raise ProtocolError(f"a role is one of {', '.join(ROLES)}, or empty, not {role[:URL_CHARS_MAX]!r}")
        if len(url) > URL_CHARS_MAX or not url.startswith(("http://", "https://")) or not url.isprintable():
            raise ProtocolError(f"{url[:URL_CHARS_MAX]!r} is not the HTTP address of an engine")
        with self._lock:
            self._engines.pop(url, None)
            if role:
                self._engines[url] = role
                if len(self._engines) > ENGINES_MAX:
                    del self._engines[next(iter(self._engines))]

    # --- what an engine says that prefills

    def open(self, call: Call, handoff_id: str, key: EngineKey) -> None:
        """Of one that is over, it begins anew: another engine prefills."""
        hashes = b"".join(self._context.hasher.chunk_hashes(key.token_ids, key.end))
        self._change(handoff_id, OPEN, hashes=hashes, world_size=key.world_size)

    def chunk(self, call: Call, handoff_id: str, chunks: int) -> None:
        self._change(handoff_id, OPEN, chunks)

    def complete(self, call: Call, handoff_id: str) -> None:
        self._change(handoff_id, COMPLETE)

    def cancel(self, call: Call, handoff_id: str) -> None:
        self._change(handoff_id, CANCELLED)

    # --- what one asks that decodes, or its server

    def wait(self, call: Waiting, handoff_id: str, known: int, seconds: float) -> object:
        """See HANDOFF_WAIT."""
        _check(handoff_id)
        if not math.isfinite(seconds):
            raise ProtocolError(f"a wait is a number of seconds, not {seconds}")
        with self._lock:
            handoff = self._find(handoff_id)
            if handoff is None and known < 0:
                handoff = self._add(handoff_id)
            if handoff is None or seconds <= 0 or handoff.says_more(known):
                state = handoff.said(known) if handoff else HandoffState(UNKNOWN)
                self._counts[f"waits_{state.state}"] += 1
                return state
            if self._waiting >= WAITERS_MAX:
                self._keep_waiting(lambda _, waiter: waiter.until > self._clock.monotonic())
            if self._waiting >= WAITERS_MAX:
                raise ProtocolError(f"{WAITERS_MAX} requests wait for hand-offs, as many as there may be")
            seconds = min(seconds, WAIT_MAX_SECONDS)
            call.defer(seconds, handoff.said(known))
            waiter = _Waiter(call, known, self._clock.monotonic() + seconds)
            self._waiters.setdefault(handoff_id, []).append(waiter)
            self._waiting += 1
        return DEFERRED

    def follow(self, call: Call, handoff_id: str, server: str, known: int, key: EngineKey) -> None:
        """See HANDOFF_FOLLOW.  One that cannot be followed is cancelled here, so that it is not waited for."""
        _check(handoff_id)
        context = self._context
        if server == context.instance_id:
            return
        fields = SpaceFields(key.model_name, key.cache_salt)
        shards = registered_shards(context, fields, key.world_size) if context.admits_salt(key.cache_salt) else ()
        hashes = context.hasher.chunk_hashes(key.token_ids, key.end)
        with self._lock:
            if handoff_id in self._followed:
                return
            follower = self.follower if shards and hashes and len(self._followed) < FOLLOWED_MAX else None
            if follower is not None:
                self._followed.add(handoff_id)
        if follower is None or not follower.start(handoff_id, server, known, key.world_size, shards, hashes):
            self.over(handoff_id)

    # --- what comes from its server

    @property
    def seconds(self) -> float:
        """Without news, until a hand-off is forgotten."""
        return self._seconds

    def cannot_read(self, reason: str) -> None:
        """What is handed over is nothing for the engine that waits."""
        with self._lock:
            self._counts[reason] += 1

    def heard(self, handoff_id: str, state: str, chunks: int) -> None:
        """A hand-off that is followed is so far."""
        self._change(handoff_id, state, chunks)

    def is_awaited(self, handoff_id: str) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            return any(waiter.until > now for waiter in self._waiters.get(handoff_id, ()))

    def over(self, handoff_id: str) -> None:
        """It is not followed any more: requests that wait for it wait no longer."""
        with self._lock:
            self._followed.discard(handoff_id)
            handoff = self._find(handoff_id)
        if handoff is None or handoff.state in (UNKNOWN, OPEN):
            self._change(handoff_id, CANCELLED)

    # --- inside

    def _change(
        self, handoff_id: str, state: str, chunks: int = 0, hashes: bytes | None = None, world_size: int = 0
    ) -> None:
        """`hashes` begin it anew; what has come late of one that is over is ignored."""
        _check(handoff_id)
        with self._lock:
            handoff = self._find(handoff_id) or self._add(handoff_id)
            if state == OPEN and hashes is None and handoff.state in (COMPLETE, CANCELLED):
                return
            handoff.state = state
            handoff.world_size = world_size or handoff.world_size
            if hashes is not None and hashes != handoff.hashes:
                self._hash_bytes += len(hashes) - len(handoff.hashes)
                handoff.hashes, handoff.chunks = hashes, 0
            known = len(handoff.hashes) // HASH_BYTES
            if known:
                chunks = known if state == COMPLETE else min(chunks, known)
            handoff.chunks = max(handoff.chunks, chunks)
            handoff.changed_at = self._clock.monotonic()
            self._handoffs.move_to_end(handoff_id)
            self._counts["chunks" if chunks and state == OPEN else state] += 1
            while self._hash_bytes > HASHES_BYTES_MAX:
                self._forget_first()
            now = handoff.changed_at
            ready = [each for each in self._waiters.get(handoff_id, ()) if handoff.says_more(each.known)]
            said = [handoff.said(each.known) for each in ready]
            if ready:
                self._keep_waiting(lambda name, each: name != handoff_id or not handoff.says_more(each.known))
        for each, state_said in zip(ready, said, strict=True):
            if each.until > now:
                each.call.reply(state_said)

    def _keep_waiting(self, waits: Callable[[str, _Waiter], bool]) -> None:
        """Forget the others.  Under the lock."""
        kept = {name: [each for each in waiters if waits(name, each)] for name, waiters in self._waiters.items()}
        self._waiters = {name: waiters for name, waiters in kept.items() if waiters}
        self._waiting = sum(map(len, self._waiters.values()))

    def _find(self, handoff_id: str) -> _Handoff | None:
        """Forgets those whose time is over, first."""
        oldest = self._clock.monotonic() - self._seconds
        while self._handoffs and next(iter(self._handoffs.values())).changed_at < oldest:
            self._forget_first()
        return self._handoffs.get(handoff_id)

    def _add(self, handoff_id: str) -> _Handoff:
        if len(self._handoffs) >= HANDOFFS_MAX:
            self._forget_first()
        added = self._handoffs[handoff_id] = _Handoff(self._clock.monotonic())
        return added

    def _forget_first(self) -> None:
        _, handoff = self._handoffs.popitem(last=False)
        self._hash_bytes -= len(handoff.hashes)


def _check(handoff_id: str) -> None:
    if not 0 < len(handoff_id) <= ID_CHARS_MAX:
        raise ProtocolError(f"the id of a hand-off has 1 to {ID_CHARS_MAX} characters, not {len(handoff_id)}")


def open_module(settings: HandoffSettings, context: ModuleContext) -> HandoffModule:
    return HandoffModule(settings, context)
