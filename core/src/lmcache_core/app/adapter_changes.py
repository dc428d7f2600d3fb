"""L2 adapters are added, drained and removed while the server runs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from msgspec import structs

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.adapter_specs import adapter_spec, free_name
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
        self._indexes = count(len(tiers.l2.adapters))  # none is used twice.  Under the tier's lock, as all below
        self._opening: set[str] = set()
        """Names of adapters that are being opened."""
        self._gone: deque[AdapterState] = deque(maxlen=REMEMBERED)
        self._stopped = False

    # --- reading

    def clients(self) -> Sequence[AdapterClient]:
        return self._tier.clients

    def states(self) -> list[AdapterState]:
        return [self._state(adapter) for adapter in self._tier.adapters]

    def state(self, name: str) -> AdapterState:
        try:
            return self._state(self._find(name))
        except NoSuchAdapterError:
            removed = [each for each in self._gone.copy() if each.name == name]
            if not removed:
                raise
            return removed[-1]

    # --- adding

    def add(self, values: Mapping[str, Any], opening: Opening = open_without_limit) -> AdapterState:
        wanted = adapter_spec(values, self._opener.plugins, "adapter", ())
        with self._tier.lock:
            self._check_open()
            taken = {*self._opening, *(adapter.name for adapter in self._tier.adapters)}
            if len(taken) >= ADAPTERS_MAX:
                raise NotNowError(f"there are {len(taken)} L2 adapters, which is the most; remove one first")
            spec = structs.replace(wanted, name=free_name(wanted.offer.name, taken))
            index, timeout = next(self._indexes), self._tier.timeout_seconds
            self._opening.add(spec.name)

        def close_late(adapter: RunningAdapter | None) -> None:
            with self._name_freed(spec.name):
                if adapter is not None:
                    adapter.client.close(ADAPTER_CLOSE_SECONDS)

        what = f"adapter '{spec.name}'"
        with self._name_freed(spec.name):
            try:
                adapter = opening(what, lambda: self._opener.open(spec, index, timeout), close_late)
            except ConfigError as error:
                raise ConfigError(f"adapter: {error}") from None
            except NotNowError:
                raise
            except LMCacheError as error:
                raise NotNowError(f"{what} cannot be opened: {error}") from None
            self._take_in(adapter)
        return self._state(adapter)

    @contextmanager
    def _name_freed(self, name: str) -> Iterator[None]:
        """Another adapter may have the name afterwards, unless the opening was abandoned and goes on."""
        is_abandoned = False
        try:
            yield
        except OpeningAbandonedError:
            is_abandoned = True
            raise
        finally:
            if not is_abandoned:
                with self._tier.lock:
                    self._opening.discard(name)

    def _take_in(self, adapter: RunningAdapter) -> None:
        """Its completions are read first, then its eviction runs, then it is used.  In one step, so that a removal that
        follows comes behind it in every inbox."""
        client, tiers = adapter.client, self._tiers
        try:
            with self._tier.lock:
                self._check_open()
                client.timeout_seconds = self._tier.timeout_seconds
                self._tier.adapters = (*self._tier.adapters, adapter)
                self._completions.add(client)
                for name, run in adapter.eviction.threads() if adapter.eviction else ():
                    self._supervisor.start(name, run)
                changes = (tiers.prefetch.add_adapter(client), tiers.store.add_adapter(client))
                self._common.bus.publish(AdapterAdded(adapter.name, adapter.spec.offer.name))
        except NotNowError:  # the server stops
            adapter.client.close(END_SECONDS)
            raise
        for change in changes:
            change.wait(APPLY_SECONDS)

    # --- draining and removing

    def drain(self, name: str) -> AdapterState:
        return self._set_draining(name, is_draining=True)

    def resume(self, name: str) -> AdapterState:
        return self._set_draining(name, is_draining=False)

    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        with self._tier.lock:
            self._check_open()
            adapter = self._find(name)
            is_new = adapter.removal is None
            removal = adapter.removal = adapter.removal or AdapterRemoval(
                adapter.client,
                self._tiers.store,
                self._tiers.prefetch,
                self._completions,
                self._common.clock,
                deadline_seconds,
                lambda: self._end_eviction(adapter),
            )
            removal.hurry(deadline_seconds)
            if force:
                removal.force()
            if is_new:
                self._supervisor.start(_thread_name(name), lambda: self._remove(adapter))
        logger.info(
            "l2 adapter is being removed adapter=%s deadline_seconds=%.1f force=%s", name, deadline_seconds, force
        )
        return self._state(adapter)

    def stop(self) -> None:
        """The server stops: no adapter is added or removed any more, and the caller closes all of them."""
        with self._tier.lock:
            self._stopped = True
            removals = [adapter.removal for adapter in self._tier.adapters if adapter.removal is not None]
        for removal in removals:
            removal.stop()

    def _set_draining(self, name: str, *, is_draining: bool) -> AdapterState:
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
            self._tier.adapters = tuple([other for other in self._tier.adapters if other is not adapter])
            self._common.bus.publish(AdapterRemoved(adapter.name, bool(removal.drained)))

    def _end_eviction(self, adapter: RunningAdapter) -> None:
        if adapter.eviction is None:
            return
        adapter.eviction.eviction.stop()
        names = [name for name, _ in adapter.eviction.threads()]
        late = [name for name in names if not self._supervisor.dismiss(name, END_SECONDS)]
        if late:
            logger.warning("threads of a removed l2 adapter did not end in time names=%s", ",".join(late))

    # --- inside

    def _check_open(self) -> None:
        if self._stopped:
            raise NotNowError("the server is stopping")

    def _find(self, name: str) -> RunningAdapter:
        adapters = {adapter.name: adapter for adapter in self._tier.adapters}
        if name not in adapters:
            raise NoSuchAdapterError(f"no L2 adapter is called '{name}'; there are: {', '.join(adapters) or 'none'}")
        return adapters[name]

    def _state(self, adapter: RunningAdapter, *, is_gone: bool = False) -> AdapterState:
        client, removal, state = adapter.client, adapter.removal, adapter.state
        if state is AdapterStage.REMOVED and not is_gone:
            state = AdapterStage.CLOSING  # its name is not free yet
        objects, size = self._tiers.store.pending_for(client)
        return AdapterState(
            name=adapter.name,
            type=adapter.spec.offer.name,
            index=client.index,
            state=state.value,
            healthy=is_well(adapter_subject(client.name), self._common.conditions.active()),
            objects_left=objects,
            bytes_left=size,
            jobs_in_flight=client.jobs.unanswered,
            borrowed_bytes=client.borrowed_bytes,
            seconds_left=None if removal is None or removal.state is AdapterStage.REMOVED else removal.seconds_left,
            drained=None if removal is None else removal.drained,
            abandoned=client.abandoned,
            eviction_policy=adapter.eviction.policy if adapter.eviction else None,
            settings=shown_adapter(adapter.spec.given, self._opener.plugins),
        )


def _thread_name(name: str) -> str:
    return f"l2-removal-{name}"
