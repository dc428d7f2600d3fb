"""Settings change while the server runs: all of a request, or none."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.l2_tier import L2Tier
from lmcache_core.app.masking import Hidden, secrets_in
from lmcache_core.app.offer_specs import OfferSpec, offer_spec
from lmcache_core.app.open_l2 import open_eviction_policy
from lmcache_core.app.openings import Openings
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.running_settings import CHANGEABLE, RunningSettings
from lmcache_core.app.settings import ServerSettings, check_pin_room
from lmcache_core.app.shown_settings import shown_settings, shown_value
from lmcache_core.contracts.events import Publisher, SettingChanged
from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.contracts.server_control import ChangedSetting, NotNowError, QuotaRefusedError, ShownSetting
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.policies import PolicyChange
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.controllers.store import StoreController
from lmcache_core.kernels.choice import Kernels
from lmcache_core.model.spelling import nearest
from lmcache_core.server.request_fields import SaltGate
from lmcache_core.storage.manager import StorageManager

logger = logging.getLogger(__name__)

Policy = TypeVar("Policy")

RUNTIME: Final = "runtime"
"""The source of a value that was changed while the server ran."""
TURN_SECONDS: Final = 5.0
"""How long a change waits for the one before it."""
OPEN_SECONDS: Final = 10.0
"""How long a policy may take to be opened."""
POLICY_SECONDS: Final = 10.0
"""How long a caller waits until a new eviction policy knows what L1 holds; it takes over later, if that takes longer."""
_LOOK_SECONDS: Final = 0.2
_KINDS: Final = {
    "eviction_policy": OfferKind.EVICTION_POLICY,
    "l2_store_policy": OfferKind.STORE_POLICY,
    "l2_prefetch_policy": OfferKind.PREFETCH_POLICY,
}


class Adjustable(msgspec.Struct, frozen=True, eq=False):
    """What settings apply to."""

    storage: StorageManager
    store: StoreController
    prefetch: PrefetchController
    eviction: EvictionController
    quotas: Quotas
    gate: SaltGate
    tier: L2Tier
    l1_bytes: int
    plugins: LoadedPlugins
    kernels: Kernels
    events: Publisher
    hidden: Hidden


@dataclass(slots=True)
class _Opened:
    """Policies that are to take over."""

    eviction: EvictionPolicy | None = None
    store: StorePolicy | None = None
    prefetch: PrefetchPolicy | None = None


class _Pending(msgspec.Struct, frozen=True):
    """A change of the eviction policy without a waiter, and the state before it."""

    change: PolicyChange
    before: RunningSettings
    isolates: bool


class SettingChanges:
    """Implements `contracts.server_control.SettingControl`.  Any thread; one change at a time."""

    def __init__(self, settings: ServerSettings, parts: Adjustable, isolates_salts: bool) -> None:
        """`isolates_salts` is said of the eviction policy that the server begins with."""
        self._l1_size_gb = settings.l1_size_gb
        self._pin_max_ratio = settings.l1_pin_max_ratio
        self._parts = parts
        self._openings = Openings()
        self._lock = threading.Lock()  # held for a whole change, and not to look
        self._first = self._current = RunningSettings.of(settings)
        self._first_adapters = settings.l2_adapter
        self._settings = settings
        self._isolates = isolates_salts
        self._pending: _Pending | None = None
        self._stopping = threading.Event()

    def policies(self) -> dict[str, str]:
        """Names, by what each decides."""
        current = self._current
        names = {"eviction": "eviction_policy", "store": "l2_store_policy", "prefetch": "l2_prefetch_policy"}
        return {word: current.policy_name(name) for word, name in names.items()}

    def running(self) -> dict[str, Any]:
        current = self._current
        return {name: self._shown(name, current) for name in CHANGEABLE}

    def shown(self) -> list[ShownSetting]:
        changed = self._changed()
        plugins = self._parts.plugins
        return [
            row._replace(value=shown_value(row.name, changed[row.name], plugins), source=RUNTIME, given_by="admin API")
            if row.name in changed
            else row
            for row in shown_settings(self._settings, plugins)
        ]

    def _changed(self) -> dict[str, Any]:
        """The values that differ from those that the server was started with, with secrets."""
        current = self._current
        changed = {name: current[name] for name in self._first.differences(current)}
        adapters = tuple([adapter.spec.given for adapter in self._parts.tier.adapters])
        return changed if adapters == self._first_adapters else {**changed, "l2_adapter": adapters}

    def change(self, values: Mapping[str, Any]) -> list[ChangedSetting]:
        _check_names(values)
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise NotNowError("other settings are being changed; try again in a moment")
        try:
            self._settle()
            if self._pending is not None:
                raise NotNowError("the eviction policy is being changed; try again when that is over")
            before, after = self._current, self._current.but(values)
            self._check_pin_room(after)
            names = before.differences(after)
            opened = self._open(names, after)
            under_way = self._take_policy(opened.eviction, before, after)
            self._apply(before, after, opened)
            self._current = after
            return [self._tell(name, before, after, under_way) for name in names]
        finally:
            self._lock.release()

    def _check_pin_room(self, after: RunningSettings) -> None:
        try:
            check_pin_room(self._pin_max_ratio, after["eviction_trigger_watermark"])
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def stop(self) -> None:
        """The server stops: wake up the callers that wait for a policy."""
        self._stopping.set()
        self._openings.stop()

    # --- in this order

    def _open(self, names: list[str], after: RunningSettings) -> _Opened:
        """Raises before anything is changed."""
        parts, opened = self._parts, _Opened()
        specs = {name: self._spec(name, after) for name in names if name in _KINDS}
        for each in specs.values():
            parts.hidden.learn(secrets_in(each.settings))
        if spec := specs.get("eviction_policy"):
            opened.eviction = self._opened(spec, partial(open_eviction_policy, spec, parts.plugins, parts.kernels))
        if spec := specs.get("l2_store_policy"):
            opened.store = self._opened(spec, partial(spec.open_as, StorePolicy, parts.plugins))
        if spec := specs.get("l2_prefetch_policy"):
            opened.prefetch = self._opened(spec, partial(spec.open_as, PrefetchPolicy, parts.plugins))
        return opened

    def _opened(self, spec: OfferSpec, open_it: Callable[[], Policy]) -> Policy:
        try:
            return self._openings.open(f"{spec.kind.label} '{spec.name}'", open_it, OPEN_SECONDS)
        except (ConfigError, NotNowError):
            raise
        except LMCacheError as error:
            raise NotNowError(str(error)) from None

    def _take_policy(
        self, policy: EvictionPolicy | None, before: RunningSettings, after: RunningSettings
    ) -> frozenset[str]:
        """The quotas are asked first, then the policy.  Raises with nothing changed.  Returns what is not over yet."""
        parts = self._parts
        isolates = self._isolates if policy is None else policy.isolates_salts
        try:
            parts.quotas.follow(after.policy_name("eviction_policy"), isolates, after.default_quota_bytes)
        except QuotaRefusedError as error:
            raise NotNowError(str(error)) from None
        if policy is None:
            return frozenset()
        change = parts.eviction.change_policy(policy)
        pending = _Pending(change, before, self._isolates)
        is_over = self._is_over(change, POLICY_SECONDS)
        if is_over and change.failed:
            self._take_back(pending, before)
            raise NotNowError(
                f"eviction policy '{after.policy_name('eviction_policy')}' failed to learn what L1 holds, and nothing is "
                "changed; the server's log says why"
            )
        self._isolates = isolates
        if is_over:
            return frozenset()
        self._pending = pending
        threading.Thread(target=self._wait_and_settle, args=(change,), name="policy-change", daemon=True).start()
        return frozenset(("eviction_policy",))

    def _is_over(self, change: PolicyChange, seconds: float) -> bool:
        """Waits for it, unless the server stops."""
        deadline = time.monotonic() + seconds
        while not change.wait(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
            if self._stopping.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def _take_back(self, pending: _Pending, current: RunningSettings) -> RunningSettings:
        """The eviction policy stays what it was.  Returns the settings with it, and without a default quota where it can
        keep none."""
        self._isolates = pending.isolates
        after = current.but({"eviction_policy": pending.before["eviction_policy"]})
        if not pending.isolates:
            after = after.but({"default_quota_gb": None})
        try:
            self._parts.quotas.follow(after.policy_name("eviction_policy"), pending.isolates, after.default_quota_bytes)
        except QuotaRefusedError as error:
            logger.warning("a quota was set meanwhile that the eviction policy that stays cannot keep: %s", error)
        return after

    def _wait_and_settle(self, change: PolicyChange) -> None:
        if self._is_over(change, math.inf):
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        """Under the lock: take back what hung on an eviction policy that has failed without a waiter."""
        pending = self._pending
        if pending is None or not pending.change.wait(0):
            return
        self._pending = None
        if not pending.change.failed:
            return
        before = self._current
        self._current = self._take_back(pending, before)
        for name in before.differences(self._current):
            self._tell(name, before, self._current, frozenset())

    def _apply(self, before: RunningSettings, after: RunningSettings, opened: _Opened) -> None:
        """Nothing here fails or waits."""
        parts = self._parts
        parts.eviction.limit(after["eviction_trigger_watermark"], after["eviction_ratio"])
        parts.prefetch.bound(
            max_in_flight=after["l2_prefetch_max_in_flight"],
            l1_max_bytes=int(parts.l1_bytes * after["l1_prefetch_max_ratio"]),
            lookup_timeout_seconds=after["lookup_timeout_seconds"],
        )
        if before.store_limits(self._l1_size_gb) != (limits := after.store_limits(self._l1_size_gb)):
            parts.store.limit(limits)
        parts.storage.allocation_wait_seconds = after["l1_allocation_wait_ms"] / 1000
        parts.gate.reject_unsalted = after["reject_unsalted"]
        if opened.store is not None:
            parts.store.plan_by(opened.store)
        if opened.prefetch is not None:
            parts.prefetch.plan_by(opened.prefetch)
        with parts.tier.lock:
            parts.tier.timeout_seconds = after["l2_timeout_seconds"]
            for port in parts.tier.clients:
                port.timeout_seconds = after["l2_timeout_seconds"]

    def _tell(
        self, name: str, before: RunningSettings, after: RunningSettings, under_way: frozenset[str]
    ) -> ChangedSetting:
        old, new = self._shown(name, before), self._shown(name, after)
        self._parts.events.publish(SettingChanged(name, json.dumps(old), json.dumps(new)))
        return ChangedSetting(name, old, new, "under way" if name in under_way else "applied")

    # --- inside

    def _spec(self, name: str, values: RunningSettings) -> OfferSpec:
        given = values[name]
        own = {key: value for key, value in given.items() if key != "type"} if isinstance(given, Mapping) else {}
        return offer_spec(self._parts.plugins, _KINDS[name], values.policy_name(name), own, name)

    def _shown(self, name: str, values: RunningSettings) -> Any:
        return shown_value(name, values[name], self._parts.plugins)


def _check_names(values: Mapping[str, Any]) -> None:
    for name in values:
        if name in CHANGEABLE:
            continue
        if name in ServerSettings.model_fields:
            raise NotNowError(
                f"'{name}' cannot be changed while the server runs: it needs a restart; GET /settings lists those that can"
            )
        guess = nearest(name, ServerSettings.model_fields)
        remedy = f"did you mean '{guess}'?" if guess else "GET /settings lists those that can be changed"
        raise ConfigError(f"no setting is called '{name:.100}'; {remedy}")
