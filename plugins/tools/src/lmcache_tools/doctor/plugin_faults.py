"""What is wrong with plugins, and with what the configuration asks of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lmcache_client.errors import LMCacheError
from lmcache_core.app.configuration import advice
from lmcache_core.app.offer_specs import offer_specs
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.missing_modules import missing_modules
from lmcache_tools.doctor.probe_result import Level, ProbeResult


def plugin_faults(context: CheckContext) -> Iterator[ProbeResult]:
    rows = context.plugins.rows()
    facts = {"plugins": {row.candidate.name: row.status.value for row in rows}}
    warnings = list(context.plugins.warnings)
    for line in warnings:
        yield ProbeResult("plugins", Level.WARN, line, "lmcache plugins list --verbose says more", facts=facts)
    for row, missing in zip(rows, missing_modules(rows), strict=True):
        for line in missing:
            warnings.append(line)
            remedy = f"install it, or what {row.candidate.owner} requires, where the server runs"
            yield ProbeResult("plugins", Level.WARN, f"plugin '{row.candidate.name}': {line}", remedy, facts=facts)
    if not warnings:
        yield ProbeResult("plugins", Level.OK, f"{len(rows)} found, none of them at fault", facts=facts)


def configuration_faults(context: CheckContext) -> Iterator[ProbeResult]:
    faults = list(advice(context.settings, os.environ))
    for line in faults:
        yield ProbeResult("configuration", Level.WARN, line)
    try:
        offer_specs(context.settings, context.plugins)
    except LMCacheError as error:
        yield ProbeResult("configuration", Level.FAIL, str(error), "a server with this configuration does not start")
    else:
        if context.unusable:
            count = len(context.unusable)
            text = f"a server with it does not start, because of {count} adapter{'s' if count > 1 else ''}: see below"
            yield ProbeResult("configuration", Level.FAIL, text)
        elif not faults:
            yield ProbeResult("configuration", Level.OK, "it is complete, and everything that it names is installed")
