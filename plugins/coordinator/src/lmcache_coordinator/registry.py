"""The servers that have registered.  What is derived from them ends with them."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lmcache_client.errors import LMCacheError
from lmcache_core import Clock
from lmcache_fleet.http_connection import HttpConnection
from lmcache_fleet.messages import PROOF_PATH, SECRET_BYTES, proof_of
from lmcache_fleet.state import CoordinatorState, StateConflictError, StateUnavailableError

logger = logging.getLogger(__name__)

SECRETS: Final = "secret/"
"""Prefix of keys in the state."""
ABSENT_SECONDS: Final = 3 * 86_400.0
"""For which the secret of a server that has not left is kept: a weekend for which it is switched off.  By default each start
has an id of its own, so that most of those that were killed never come back."""
INSTANCES_MAX: Final = 10_000
PROOF_SECONDS: Final = 2.0
"""For a connection to a server that is to prove who it is, and for its answer."""


class UnknownInstanceError(LMCacheError):
    """It has not registered, or was dropped: register (again)."""


class InstanceTakenError(LMCacheError):
    """The id is another server's: the caller does not have its secret, or it is live."""


class TooManyInstancesError(LMCacheError):
    """There is no room for another instance."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    ip: str = ""
    http_port: int = 0
    mq_port: int = 0
    p2p_advertised_url: str = ""
    metadata: Mapping[str, Any] = {}
    incarnation: str = ""

    @property
    def admin_url(self) -> str:
        """Where it says that its admin API is."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{self.http_port}"


class Instance(msgspec.Struct, frozen=True):
    instance_id: str
    says: Registration
    registered_at: float
    """Wall clock, seconds."""
    heartbeat: float
    """Monotonic, seconds: when it was last heard from."""
    proves: Registration
    """Where it is asked for a proof: what it said when it was last known to be the one that has the id.  An id without a secret
    may be registered by others meanwhile."""


def is_poster(instance: Instance) -> bool:
    """Does it post events, and is asked at its admin API?  Servers that keep journals say their incarnation."""
    return bool(instance.says.http_port) and not instance.says.incarnation


class Registry:
    """Safe from any thread."""

    def __init__(
        self,
        state: CoordinatorState,
        clock: Clock,
        timeout_seconds: float,
        joined: Callable[[str, str], None],
        gone: Callable[[str], None],
    ) -> None:
        """`joined` is called with the id and the incarnation of each instance that registers, `gone` with the id of each that
        leaves or is dropped."""
        self._state = state
        self._clock = clock
        self._timeout = timeout_seconds
        self._joined = joined
        self._gone = gone
        self._registering = threading.Lock()  # one at a time: the state is written
        self._asking = threading.Lock()  # one server at a time is asked for a proof, on a thread that waits for it
        self._lock = threading.Lock()  # guards all below
        self._instances: dict[str, Instance] = {}
        self._secrets = {key.removeprefix(SECRETS): entry.value for key, entry in state.read(SECRETS).entries.items()}
        self._bound_until = clock.monotonic() + timeout_seconds
        """Until then, instances that a coordinator before this one knew may be alive: their ids are not given to others."""
        self._absent: dict[str, float] = {}
        """Of ids with a secret that are not live: since when, as far as is known here."""
        self._removed: dict[str, float] = {}
        """Until when the ids of removed ones are not given to others."""
        self.timed_out = 0

    def register(
        self, instance_id: str, says: Registration, secret: bytes | None, wants_secret: bool
    ) -> tuple[bool, bytes | None]:
        """Returns whether it was known, and the secret that binds the id from now on, where one was asked for and the right one
        was not brought: the one that was brought, where it has the length of one, so that a server that registers at
        several coordinators has one for all of them.

        A live id that is bound to another secret, or to none, is bound to the one that was brought where the server that
        answers at the registered address proves that it has it: it has started again there.  This waits for its answer.

        Raises InstanceTakenError, TooManyInstancesError, StateUnavailableError."""
        before = self.find(instance_id)
        try:
            return self._register(instance_id, says, secret, wants_secret, None)
        except InstanceTakenError:
            if before is None or not secret or not self._proves(before.proves, secret):
                raise
        return self._register(instance_id, says, secret, wants_secret, before)

    def _proves(self, says: Registration, secret: bytes) -> bool:
        if not (says.ip and says.http_port) or not self._asking.acquire(blocking=False):
            return False  # it asks again soon
        connection = HttpConnection(says.admin_url, seconds=PROOF_SECONDS)
        challenge = secrets.token_hex(32)
        try:
            proof = connection.ask("GET", PROOF_PATH + challenge).json()["proof"]
            return hmac.compare_digest(str(proof), proof_of(secret, challenge))
        except (LMCacheError, OSError, KeyError, TypeError, ValueError):
            return False
        finally:
            connection.close()
            self._asking.release()

    def _register(
        self, instance_id: str, says: Registration, secret: bytes | None, wants_secret: bool, gone: Instance | None
    ) -> tuple[bool, bytes | None]:
        """`gone`: a start of it that has ended."""
        with self._registering:
            self._read_secret(instance_id)
            brings = self._brings(instance_id, secret)
            with self._lock:
                before = self._instances.get(instance_id)
                is_full = before is None and len(self._instances) >= INSTANCES_MAX
            now = self._clock.monotonic()
            is_live = before is not None and before is not gone and now - before.heartbeat < self._timeout
            is_kept = gone is None and (now < self._bound_until or now < self._removed.get(instance_id, now))
            is_bound = instance_id in self._secrets
            if not brings and ((is_bound and (is_live or is_kept)) or (wants_secret and is_live)):
                raise InstanceTakenError(
                    f"instance '{instance_id}' is {'bound' if is_bound else 'live, and not bound'} to a secret that this "
                    "request does not bring; use another --instance-id, or wait "
                    f"{self._timeout:.0f} s after the end of the other one"
                )
            if is_full:
                raise TooManyInstancesError(f"{INSTANCES_MAX} instances have registered, which is the most")
            offered = secret if secret and len(secret) == SECRET_BYTES else secrets.token_bytes(SECRET_BYTES)
            made = offered if wants_secret and not brings else None
            if made or (instance_id in self._secrets and not brings):
                self._state.write(SECRETS + instance_id, made)
            with self._lock:
                if made:
                    self._secrets[instance_id] = made
                elif not brings:
                    self._secrets.pop(instance_id, None)
                self._instances[instance_id] = Instance(
                    instance_id,
                    says,
                    self._clock.wall_ns() / 1e9,
                    now,
                    before.proves if before is not None and is_live and not brings else says,
                )
            self._joined(instance_id, says.incarnation)
        return before is not None, made

    def heard(self, instance_id: str, secret: bytes | None, incarnation: str | None = None) -> Instance:
        """It lives.  Raises UnknownInstanceError, also for another incarnation than the registered one, and
        InstanceTakenError."""
        self._check(instance_id, secret)
        with self._lock:
            before = self._instances.get(instance_id)
            if before is None or incarnation not in (None, before.says.incarnation):
                raise UnknownInstanceError(
                    f"instance '{instance_id}' is not registered; register it, and send everything it has"
                )
            heard = msgspec.structs.replace(before, heartbeat=self._clock.monotonic())
            self._instances[instance_id] = heard
        return heard

    def admit(self, instance_id: str, secret: bytes | None) -> None:
        """May this caller speak for it?  An id that has not registered is free.  Raises InstanceTakenError."""
        self._check(instance_id, secret)

    def leave(self, instance_id: str, secret: bytes | None) -> None:
        """Anybody may have its id then.  Raises UnknownInstanceError, InstanceTakenError."""
        self._check(instance_id, secret)
        with self._lock:
            if self._instances.pop(instance_id, None) is None:
                raise UnknownInstanceError(f"instance '{instance_id}' is not registered")
            known = self._secrets.get(instance_id)
        self._gone(instance_id)
        if known is not None:
            try:
                self._unbind(instance_id, known)
            except StateUnavailableError as error:
                logger.debug("secret is removed later instance=%s error=%s", instance_id, error)

    def forget_absent(self, is_leader: bool) -> None:
        """Secrets of servers that have not come back for ABSENT_SECONDS are removed, where this coordinator leads; and take in
        which secrets there are.  Raises StateUnavailableError."""
        now = self._clock.monotonic()
        with self._registering:
            entries = self._state.read(SECRETS).entries
            with self._lock:
                kept = {name: value for name, value in self._secrets.items() if name in self._instances}
                read = {key.removeprefix(SECRETS): entry.value for key, entry in entries.items()}
                absent = {name: value for name, value in read.items() if name not in self._instances}
                self._secrets = {**kept, **read}
        self._absent = {name: self._absent.get(name, now) for name in absent}
        for name, since in self._absent.items():
            if is_leader and now - since >= ABSENT_SECONDS and self.find(name) is None:
                self._unbind(name, absent[name])

    def _unbind(self, instance_id: str, secret: bytes) -> None:
        """Remove this secret, and none that it has got since from another coordinator.  Raises StateUnavailableError."""
        key = SECRETS + instance_id
        with self._registering:
            entry = self._state.read(key).entries.get(key)
            if entry is not None and entry.value == secret:
                try:
                    self._state.write(key, None, entry.revision)
                except StateConflictError:
                    return
            with self._lock:
                if self._secrets.get(instance_id) == secret:
                    del self._secrets[instance_id]

    def remove(self, instance_id: str) -> None:
        """An operator takes it out.  One that lives registers again; its id is kept for its secret as long as a silent one
        is waited for.  Raises UnknownInstanceError."""
        with self._lock:
            if self._instances.pop(instance_id, None) is None:
                raise UnknownInstanceError(f"instance '{instance_id}' is not registered")
            now = self._clock.monotonic()
            self._removed = {name: until for name, until in self._removed.items() if until > now}
            self._removed[instance_id] = now + self._timeout
        self._gone(instance_id)

    def drop_silent(self) -> list[str]:
        """Those that were not heard from for too long leave.  Returns their ids."""
        due = self._clock.monotonic() - self._timeout
        with self._lock:
            silent = [name for name, instance in self._instances.items() if instance.heartbeat < due]
            for name in silent:
                del self._instances[name]
            self.timed_out += len(silent)
        for name in silent:
            self._gone(name)
        return silent

    def find(self, instance_id: str) -> Instance | None:
        """None: it has not registered."""
        with self._lock:
            return self._instances.get(instance_id)

    def live(self) -> Sequence[Instance]:
        """In the order of registration."""
        with self._lock:
            return list(self._instances.values())

    def silences(self) -> Sequence[tuple[Instance, float]]:
        """The same, with the seconds since each was heard from."""
        now = self._clock.monotonic()
        return [(each, max(0.0, now - each.heartbeat)) for each in self.live()]

    def _read_secret(self, instance_id: str) -> None:
        """Another coordinator may have bound the id, or freed it."""
        entry = self._state.read(SECRETS + instance_id).entries.get(SECRETS + instance_id)
        with self._lock:
            if entry is not None:
                self._secrets[instance_id] = entry.value
            elif (
                instance_id not in self._instances
            ):  # one that has left another coordinator is bound here until it has left
                self._secrets.pop(instance_id, None)

    def _check(self, instance_id: str, secret: bytes | None) -> None:
        if instance_id in self._secrets and not self._brings(instance_id, secret):
            raise InstanceTakenError(f"instance '{instance_id}' is bound to a secret that this request does not bring")

    def _brings(self, instance_id: str, secret: bytes | None) -> bool:
        known = self._secrets.get(instance_id)
        return known is not None and hmac.compare_digest(known, secret or b"")
