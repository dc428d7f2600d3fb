"""L2 adapters come and go while the server runs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.adapter_specs import AdapterSpec, adapter_spec, free_name
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.l2_tier import ADAPTER_CLOSE_SECONDS, RunningAdapter
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.shown_settings import shown_adapter
from lmcache_core.contracts.events import AdapterAdded, AdapterRemoved
from lmcache_core.contracts.server_control import (
    AdapterState,
    NoSuchAdapterError,
    NotNowError,
    Opening,
    OpeningAbandonedError,
    open_without_limit,
)
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_conditions import adapter_subject
from lmcache_core.controllers.adapter_jobs import CompletionThread
from lmcache_core.controllers.adapter_removal import AdapterRemoval, AdapterStage
from lmcache_core.controllers.conditions import is_well
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.jobs.queues import PendingCall

logger = logging.getLogger(__name__)

ADAPTERS_MAX: Final = 32
APPLY_SECONDS: Final = 5.0
"""How long a controller may take to get to a change; it is made whenever it gets there."""
END_SECONDS: Final = 1.0
"""How long the threads of an adapter's eviction may take to end."""
REMEMBERED: Final = 32
"""Adapters that are gone and can still be asked about."""


class AdapterChanges:
    """Implements `contracts.server_control.AdapterControl`.  Any thread; nothing here is on a request's path."""

    def __init__(
        self, common: CommonParts, tiers: Tiers, completions: CompletionThread, supervisor: Supervisor
    ) -> None:
        self._common, self._tiers, self._completions, self._supervisor = common, tiers, completions, supervisor
        self._tier, self._opener = tiers.l2, tiers.opener
        self._opening: set[str] = set()
        """Names of those that are not there yet.  Under the tier's lock, as all below."""
        self._gone: deque[AdapterState] = deque(maxlen=REMEMBERED)
        self._stopped = False

    # --- looking

    def clients(self) -> Sequence[AdapterClient]:
        return self._tier.clients

    def states(self) -> list[AdapterState]:
        return [self._state(adapter) for adapter in self._tier.adapters]

    def state(self, name: str) -> AdapterState:
        if adapter := self._tier.find(name):
            return self._state(adapter)
        for gone in reversed(self._gone.copy()):
            if gone.name == name:
                return gone
        raise self._unknown(name)

    # --- coming

    def add(self, values: Mapping[str, Any], opening: Opening = open_without_limit) -> AdapterState:
        wanted = adapter_spec(values, self._opener.plugins, "adapter", ())
        with self._tier.lock:
            self._check_open()
            taken = {*self._opening, *(adapter.name for adapter in self._tier.adapters)}
            if len(taken) >= ADAPTERS_MAX:
                raise NotNowError(f"there are {len(taken)} L2 adapters, which is the most; remove one first")
            spec = replace(wanted, name=free_name(wanted.offer.name, taken))
            index = self._tier.take_index()
            self._opening.add(spec.name)
        is_over = True
        try:
            adapter = self._opened(spec, index, opening)
            self._take_in(adapter)
        except OpeningAbandonedError:
            is_over = False  # its name stays taken until whatever was begun there has ended
            raise
        finally:
            if is_over:
                self._free(spec.name)
        return self._state(adapter)

    def _opened(self, spec: AdapterSpec, index: int, opening: Opening) -> RunningAdapter:
        def come_too_late(adapter: RunningAdapter | None) -> None:
            try:
                if adapter is not None:
                    adapter.close(ADAPTER_CLOSE_SECONDS)
            finally:
                self._free(spec.name)

        what, timeout = f"adapter '{spec.name}'", self._tier.timeout_seconds
        try:
            return opening(what, lambda: self._opener.open(spec, index, timeout), come_too_late)
        except ConfigError as error:
            raise ConfigError(f"adapter: {error}") from None
        except NotNowError:
            raise
        except LMCacheError as error:
            raise NotNowError(f"{what} cannot be opened: {error}") from None

    def _take_in(self, adapter: RunningAdapter) -> None:
        """Heard first, then kept from overflowing, then asked and stored to.  In one step, so that a removal that follows
        comes behind it in every inbox."""
        port = adapter.client
        with self._tier.lock:
            if is_late := self._stopped:
                changes: tuple[PendingCall, ...] = ()
            else:
                port.timeout_seconds = self._tier.timeout_seconds
                self._tier.append(adapter)
                self._completions.add(port)
                for name, run in adapter.eviction.threads() if adapter.eviction else ():
                    self._supervisor.start(name, run)
                changes = (self._tiers.prefetch.add_adapter(port), self._tiers.store.add_adapter(port))
                self._common.bus.publish(AdapterAdded(adapter.name, adapter.spec.offer.name))
        if is_late:
            adapter.close(END_SECONDS)
            self._check_open()
        for change in changes:
            change.wait(APPLY_SECONDS)

    def _free(self, name: str) -> None:
        """No adapter of this name is about to come any more."""
        with self._tier.lock:
            self._opening.discard(name)

    # --- going

    def drain(self, name: str) -> AdapterState:
        return self._turn(name, is_draining=True)

    def resume(self, name: str) -> AdapterState:
        return self._turn(name, is_draining=False)

    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        with self._tier.lock:
            self._check_open()
            adapter = self._find(name)
            if adapter.removal is None:
                adapter.removal = AdapterRemoval(
                    adapter.client,
                    self._tiers.store,
                    self._tiers.prefetch,
                    self._completions,
                    self._common.clock,
                    deadline_seconds,
                    lambda: self._end_eviction(adapter),
                )
                if force:
                    adapter.removal.force()
                self._supervisor.start(_thread_name(name), lambda: self._remove(adapter))
            else:
                adapter.removal.hurry(deadline_seconds)
                if force:
                    adapter.removal.force()
        logger.info(
            "l2 adapter is being removed adapter=%s deadline_seconds=%.1f force=%s", name, deadline_seconds, force
        )
        return self._state(adapter)

    def stop(self) -> None:
        """The server stops: nothing comes or goes any more, and all adapters are the caller's to close."""
        with self._tier.lock:
            self._stopped = True
            removals = [adapter.removal for adapter in self._tier.adapters if adapter.removal is not None]
        for removal in removals:
            removal.stop()

    def _turn(self, name: str, *, is_draining: bool) -> AdapterState:
        with self._tier.lock:
            self._check_open()
            adapter = self._find(name)
            if adapter.removal is not None:
                raise NotNowError(f"adapter '{name}' is being removed; GET /l2/adapters/{name} says how far that is")
            adapter.is_draining = is_draining
            change = self._tiers.store.drain_adapter(adapter.client, again=not is_draining)
        change.wait(APPLY_SECONDS)
        logger.info("l2 adapter takes stores adapter=%s stores=%s", name, not is_draining)
        return self._state(adapter)

    def _remove(self, adapter: RunningAdapter) -> None:
        """The body of a thread of its own, because an adapter may block its close."""
        removal = adapter.removal
        assert removal is not None
        removal.run()
        if removal.state is not AdapterStage.REMOVED:
            return  # the server stops
        self._supervisor.dismiss(_thread_name(adapter.name), 0)
        with self._tier.lock:
            if adapter not in self._tier.adapters:
                return
            self._gone.append(self._state(adapter, is_gone=True))
            self._tier.forget(adapter)
            self._common.bus.publish(AdapterRemoved(adapter.name, bool(removal.drained)))

    def _end_eviction(self, adapter: RunningAdapter) -> None:
        if adapter.eviction is None:
            return
        adapter.eviction.stop()
        names = [name for name, _ in adapter.eviction.threads()]
        late = [name for name in names if not self._supervisor.dismiss(name, END_SECONDS)]
        if late:
            logger.warning("threads of a removed l2 adapter did not end in time names=%s", ",".join(late))
        else:
            adapter.eviction.close()

    # --- inside

    def _check_open(self) -> None:
        if self._stopped:
            raise NotNowError("the server is stopping")

    def _find(self, name: str) -> RunningAdapter:
        adapter = self._tier.find(name)
        if adapter is None:
            raise self._unknown(name)
        return adapter

    def _unknown(self, name: str) -> NoSuchAdapterError:
        names = ", ".join(adapter.name for adapter in self._tier.adapters)
        return NoSuchAdapterError(f"no L2 adapter is called '{name}'; there are: {names or 'none'}")

    def _state(self, adapter: RunningAdapter, *, is_gone: bool = False) -> AdapterState:
        port, removal, state = adapter.client, adapter.removal, adapter.state
        if state is AdapterStage.REMOVED and not is_gone:
            state = AdapterStage.CLOSING  # its name is not free yet
        objects, size = self._tiers.store.pending_for(port)
        return AdapterState(
            name=adapter.name,
            type=adapter.spec.offer.name,
            index=port.index,
            state=state.value,
            healthy=is_well(adapter_subject(port.name), self._common.conditions.active()),
            objects_left=objects,
            bytes_left=size,
            jobs_in_flight=port.unanswered,
            borrowed_bytes=port.borrowed_bytes,
            seconds_left=None if removal is None or removal.state is AdapterStage.REMOVED else removal.seconds_left,
            drained=None if removal is None else removal.drained,
            given_up=port.given_up,
            eviction_policy=adapter.eviction.policy if adapter.eviction else None,
            settings=shown_adapter(adapter.spec.given, self._opener.plugins),
        )


def _thread_name(name: str) -> str:
    return f"l2-removal-{name}"
