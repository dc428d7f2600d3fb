"""Settings change while the server runs: all of a request, or none."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from pydantic import BaseModel, ConfigDict, create_model, field_validator

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.masking import secrets_in
from lmcache_core.app.offer_specs import OfferSpec, policy_spec
from lmcache_core.app.open_l2 import open_eviction_policy
from lmcache_core.app.open_tiers import GIB, Tiers, store_limits
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.setting_groups import name_or_object
from lmcache_core.app.settings import ServerSettings, check_pin_room
from lmcache_core.app.shown_settings import shown_settings, shown_value
from lmcache_core.contracts.events import SettingChanged
from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.contracts.server_control import (
    ChangedSetting,
    NotNowError,
    Opening,
    QuotaRefusedError,
    ShownSetting,
    open_without_limit,
)
from lmcache_core.contracts.settings import validate
from lmcache_core.controllers.policy_guard import PolicyChange
from lmcache_core.server.request_fields import SaltGate

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 5.0
"""How long a change waits for the one before it."""
POLICY_SECONDS: Final = 10.0
"""How long a caller waits until a new eviction policy knows what L1 holds; it takes over later, if that takes longer."""
_LOOK_SECONDS: Final = 0.2
_POLICIES: Final[Mapping[str, tuple[OfferKind, type[Any]]]] = {
    "eviction_policy": (OfferKind.EVICTION_POLICY, EvictionPolicy),
    "l2_store_policy": (OfferKind.STORE_POLICY, StorePolicy),
    "l2_prefetch_policy": (OfferKind.PREFETCH_POLICY, PrefetchPolicy),
}
CHANGEABLE: Final = (
    "eviction_policy",
    "eviction_trigger_watermark",
    "eviction_ratio",
    "default_quota_gb",
    "reject_unsalted",
    "l1_allocation_wait_ms",
    "l1_prefetch_max_ratio",
    "lookup_timeout_seconds",
    "l2_store_policy",
    "l2_prefetch_policy",
    "l2_prefetch_max_in_flight",
    "l2_timeout_seconds",
    "l2_store_max_backlog_gb",
    "l2_store_max_backlog_seconds",
    "l2_store_drop",
)
"""In the order in which they are shown."""
Values = Mapping[str, Any]
"""By the names in CHANGEABLE.  Replaced, and never changed."""


class _Pending(msgspec.Struct, frozen=True):
    """A change of the eviction policy, and the state before it."""

    change: PolicyChange
    before: Values
    isolates: bool


class SettingChanges:
    """Implements `contracts.server_control.SettingControl`.  Any thread; one change at a time."""

    def __init__(self, common: CommonParts, tiers: Tiers, gate: SaltGate) -> None:
        self._common, self._tiers, self._gate = common, tiers, gate
        self._lock = threading.Lock()  # held for a whole change, and not to read
        self._first: Values = {name: getattr(common.settings, name) for name in CHANGEABLE}
        self._current: Values = self._first
        self._pending: _Pending | None = None
        """That has no waiter; a thread settles it."""
        self._stopping = threading.Event()

    def policies(self) -> dict[str, str]:
        """Names, by what each decides."""
        current = self._current
        names = {"eviction": "eviction_policy", "store": "l2_store_policy", "prefetch": "l2_prefetch_policy"}
        return {word: _policy_name(current[name]) for word, name in names.items()}

    def running(self) -> dict[str, Any]:
        current = self._current
        return {name: self._shown(name, current) for name in CHANGEABLE}

    def shown(self) -> list[ShownSetting]:
        current, settings, plugins = self._current, self._common.settings, self._common.plugins
        changed = {name: current[name] for name in _differences(self._first, current)}
        adapters = tuple([adapter.spec.given for adapter in self._tiers.l2.adapters])
        if adapters != settings.l2_adapter:
            changed["l2_adapter"] = adapters
        return [
            row._replace(
                value=shown_value(row.name, changed[row.name], plugins), source="runtime", given_by="admin API"
            )
            if row.name in changed
            else row
            for row in shown_settings(settings, plugins)
        ]

    def change(self, values: Mapping[str, Any], opening: Opening = open_without_limit) -> list[ChangedSetting]:
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise NotNowError("other settings are being changed; try again in a moment")
        try:
            if self._pending is not None:
                raise NotNowError("the eviction policy is being changed; try again when that is over")
            before = self._current
            after = _checked({**before, **values}, self._common.settings.l1_pin_max_ratio)
            names = _differences(before, after)
            opened = {name: self._open(name, after, opening) for name in names if name in _POLICIES}
            self._take_policy(opened.get("eviction_policy"), before, after)
            self._apply(after, opened)
            self._current = after
            return [self._changed(name, before, after) for name in names]
        finally:
            self._lock.release()

    def stop(self) -> None:
        """The server stops: wake up the callers that wait for a policy."""
        self._stopping.set()

    # --- in this order, under the lock

    def _open(self, name: str, after: Values, opening: Opening) -> Any:
        """Raises before anything is changed."""
        kind, wanted = _POLICIES[name]
        plugins, kernels = self._common.plugins, self._common.kernels
        spec: OfferSpec = policy_spec(plugins, kind, after[name], name)
        self._common.hidden.learn(secrets_in(spec.settings))

        def open_it() -> Any:
            if wanted is EvictionPolicy:
                return open_eviction_policy(spec, plugins, kernels)
            return spec.open_as(wanted, plugins)

        try:
            return opening(f"{kind.label} '{spec.name}'", open_it, lambda policy: None)
        except (ConfigError, NotNowError):
            raise
        except LMCacheError as error:
            raise NotNowError(str(error)) from None

    def _take_policy(self, policy: EvictionPolicy | None, before: Values, after: Values) -> None:
        """The quotas are asked first, then the policy.  Raises with nothing changed.  Leaves a pending change where the
        policy takes too long."""
        quotas, name = self._tiers.quotas, _policy_name(after["eviction_policy"])
        isolated = quotas.isolates
        try:
            quotas.follow(name, isolated if policy is None else policy.isolates_salts, _default_bytes(after))
        except QuotaRefusedError as error:
            raise NotNowError(str(error)) from None
        if policy is None:
            return
        pending = _Pending(self._tiers.eviction.change_policy(policy), before, isolated)
        if not self._is_over(pending.change, POLICY_SECONDS):
            self._pending = pending
            threading.Thread(target=self._settle, args=(pending,), name="policy-change", daemon=True).start()
        elif pending.change.failed:
            self._take_back(pending, before)
            raise NotNowError(
                f"eviction policy '{name}' failed to learn what L1 holds, and nothing is changed; the server's log says why"
            )

    def _apply(self, after: Values, opened: Mapping[str, Any]) -> None:
        """Nothing here fails or waits."""
        tiers = self._tiers
        tiers.eviction.limit(after["eviction_trigger_watermark"], after["eviction_ratio"])
        tiers.prefetch.bound(
            max_in_flight=after["l2_prefetch_max_in_flight"],
            l1_max_bytes=int(tiers.arena.size_bytes * after["l1_prefetch_max_ratio"]),
            lookup_timeout_seconds=after["lookup_timeout_seconds"],
        )
        l1_size_gb = self._common.settings.l1_size_gb
        if (limits := store_limits(after, l1_size_gb)) != store_limits(self._current, l1_size_gb):
            tiers.store.limit(limits)  # which forgets what the queues have learned
        tiers.storage.allocation_wait_seconds = after["l1_allocation_wait_ms"] / 1000
        self._gate.reject_unsalted = after["reject_unsalted"]
        if "l2_store_policy" in opened:
            tiers.store.plan_by(opened["l2_store_policy"])
        if "l2_prefetch_policy" in opened:
            tiers.prefetch.plan_by(opened["l2_prefetch_policy"])
        with tiers.l2.lock:
            tiers.l2.timeout_seconds = after["l2_timeout_seconds"]
            for client in tiers.l2.clients:
                client.timeout_seconds = after["l2_timeout_seconds"]

    # --- a policy that takes long, or fails

    def _is_over(self, change: PolicyChange, seconds: float) -> bool:
        """Waits for it, unless the server stops."""
        deadline = time.monotonic() + seconds
        while not change.wait(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
            if self._stopping.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def _take_back(self, pending: _Pending, current: Values) -> Values:
        """The eviction policy stays what it was.  Returns the settings with it, and without a default quota where it can
        keep none."""
        after = {**current, "eviction_policy": pending.before["eviction_policy"]}
        if not pending.isolates:
            after["default_quota_gb"] = None
        try:
            self._tiers.quotas.follow(_policy_name(after["eviction_policy"]), pending.isolates, _default_bytes(after))
        except QuotaRefusedError as error:
            logger.warning("a quota was set meanwhile that the eviction policy that stays cannot keep: %s", error)
        return after

    def _settle(self, pending: _Pending) -> None:
        """The body of a thread: what depended on an eviction policy that fails is taken back."""
        if not self._is_over(pending.change, math.inf):
            return
        with self._lock:
            self._pending = None
            if pending.change.failed:
                before, self._current = self._current, self._take_back(pending, self._current)
                for name in _differences(before, self._current):
                    self._changed(name, before, self._current)

    # --- for callers and subscribers

    def _changed(self, name: str, before: Values, after: Values) -> ChangedSetting:
        is_late = name == "eviction_policy" and self._pending is not None
        old, new = self._shown(name, before), self._shown(name, after)
        self._common.bus.publish(SettingChanged(name, json.dumps(old), json.dumps(new)))
        return ChangedSetting(name, old, new, "under way" if is_late else "applied")

    def _shown(self, name: str, values: Values) -> Any:
        return shown_value(name, values[name], self._common.plugins)


@cache
def _model() -> type[BaseModel]:
    """Checks them as those of the start are checked.  Made when it is first used, which takes some milliseconds."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in ServerSettings.model_fields.items()}
    return create_model(
        "RunningSettings",
        __config__=ConfigDict(extra="forbid", strict=True),
        __validators__={"policies": field_validator(*_POLICIES, mode="before")(name_or_object)},
        **{name: fields[name] for name in CHANGEABLE},
    )


def _checked(values: Values, pin_max_ratio: float) -> Values:
    """Raises ConfigError that names the field and what is allowed."""
    checked = dict(validate(_model(), values, "settings"))
    try:
        check_pin_room(pin_max_ratio, checked["eviction_trigger_watermark"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return checked


def _differences(before: Values, after: Values) -> list[str]:
    return [name for name in CHANGEABLE if before[name] != after[name]]


def _policy_name(given: Any) -> str:
    return str(given["type"] if isinstance(given, Mapping) else given)


def _default_bytes(values: Values) -> int | None:
    gigabytes = values["default_quota_gb"]
    return None if gigabytes is None else round(gigabytes * GIB)
