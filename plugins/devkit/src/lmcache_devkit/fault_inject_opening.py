"""Opens the `fault_inject` adapter, and the one inside it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import adapter_spec
from lmcache_core.app.console.command_line import selection_from
from lmcache_core.app.open_l2 import open_adapter
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter
from lmcache_core.model.results import Outcome
from lmcache_devkit.altered_bytes import ALTERING
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.fault_inject import Error, FaultInjectAdapter
from lmcache_devkit.fault_inject_settings import FaultInjectSettings
from lmcache_devkit.fault_plan import FaultPlan, Verb

VERBS: Final[tuple[Verb, ...]] = ("store", "lookup", "load", "delete")
MIB: Final = 2**20


def open_fault_inject(settings: FaultInjectSettings, context: AdapterContext) -> FaultInjectAdapter:
    """Raises what opening the adapter inside raises."""
    plan = FaultPlan({verb: settings.of(verb).rates for verb in VERBS}, settings.seed)
    scratch = _scratch(settings)
    regions = (*context.regions, scratch.region) if scratch else context.regions
    inner = _open_inner(settings, replace(context, regions=regions))
    try:
        return FaultInjectAdapter(
            context,
            inner,
            plan,
            errors={verb: _error(settings.of(verb).error_as) for verb in VERBS},
            delay_seconds=settings.delay_seconds,
            scratch=scratch,
        )
    except BaseException:
        inner.close(0.0)
        raise


def _scratch(settings: FaultInjectSettings) -> BorrowedBuffer | None:
    """Memory is taken when it is written to, but an adapter may pin all of a region: there is none unless it is needed."""
    if not any(settings.store.rates[fault] for fault in ALTERING):
        return None
    region = BorrowedMemory(int(settings.altered_max_mb * MIB)).region
    return BorrowedBuffer(region, 0, region.length)


def _open_inner(settings: FaultInjectSettings, context: AdapterContext) -> L2Adapter:
    where = f"{context.name}.inner"
    plugins = selection_from(os.environ).load()
    spec = adapter_spec(settings.inner, plugins, where, ())
    if spec.eviction is not None:
        raise ConfigError(f"{where}: field 'eviction' belongs beside 'inner', because the server evicts from the whole")
    if spec.serdes is not None:
        raise ConfigError(f"{where}: field 'serde' belongs beside 'inner', so that faults are made to what is stored")
    return open_adapter(spec.offer.name, spec.settings, plugins, context)


def _error(given: str) -> Error:
    number = getattr(errno, given, None)
    return number if isinstance(number, int) else Outcome(given)
