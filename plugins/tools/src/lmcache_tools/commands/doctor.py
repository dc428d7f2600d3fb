"""`lmcache doctor`"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.adapter_specs import AdapterSpec, adapter_spec
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.console.command_line import command_selection, server_selection
from lmcache_core.app.console.command_output import add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.check_run import Report, run_checks
from lmcache_tools.doctor.model_shape import read_model_shape
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.doctor.tiers import tier_row
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Mood, Table
from lmcache_tools.quantities import size_text
from lmcache_tools.waiting import waiting

_TERA: Final = 1e12
_MOODS: Final = {Level.OK: Mood.GOOD, Level.WARN: Mood.DOUBTFUL, Level.FAIL: Mood.BAD}


def parsers() -> list[CommandParser]:
    return [_parser(command_selection().load())]


def _parser(plugins: LoadedPlugins) -> ServerFlags:
    parser = ServerFlags(
        plugins,
        "lmcache doctor",
        "Look at this machine and at a server's configuration, and say what to change.  Opens every adapter that is "
        "configured, and stores, loads and deletes an object there.",
    )
    asked = parser.add_argument_group("what is looked at")
    asked.add_argument(
        "--model", metavar="PATH", help="config.json of the model, or its folder: what fits, what a hit saves"
    )
    asked.add_argument("--tp", type=int, default=1, metavar="N", help="workers of the engine (default: 1)")
    asked.add_argument(
        "--page-size",
        type=int,
        metavar="TOKENS",
        help="SGLang's, with --enable-lmcache: whether chunks are whole pages",
    )
    asked.add_argument("--kv-dtype", metavar="WORD", help="type of the KV cache, where it is not the model's")
    asked.add_argument(
        "--parameters", type=float, metavar="BILLIONS", help="that a token passes through (default: by config.json)"
    )
    asked.add_argument(
        "--flops",
        type=float,
        metavar="TERA",
        help="TFLOP/s that the engine reaches in a prefill (default: measured here)",
    )
    asked.add_argument("--skip-adapters", action="store_true", help="open no adapter")
    asked.add_argument("--fix-hints", action="store_true", help="end with the commands and flags that would help")
    asked.add_argument("--faults", action="store_true", help="show only what is not ok")
    add_output_flags(parser)
    return parser


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 1 when a result is a failure."""
    plugins = server_selection(arguments).load(strict=True)
    parser = _parser(plugins)
    given = parser.parse_all(arguments)
    checked = _checked(given, parser, plugins)
    with waiting("looking"):
        report = run_checks(checked, given.flops and given.flops * _TERA, not given.skip_adapters)
    output_of(given).show(report.record(checked), lambda: list(_page(checked, report, given)))
    return ExitCode.FAILED if report.failed else ExitCode.STOPPED


def _checked(given: argparse.Namespace, parser: ServerFlags, plugins: LoadedPlugins) -> CheckContext:
    for flag, value in (("--flops", given.flops), ("--parameters", given.parameters)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{flag} {value:g}: expected more than 0")
    if not 1 <= given.tp <= 1024:
        raise ConfigError(f"--tp {given.tp}: expected 1 to 1024")
    if given.page_size is not None and given.page_size < 1:
        raise ConfigError(f"--page-size {given.page_size}: expected 1 or more")
    model = read_model_shape(Path(given.model), given.kv_dtype) if given.model else None
    if model and given.parameters:
        model = replace(model, parameters=round(given.parameters * 1e9))
    settings = read_settings(parser.settings_in(given), plugins)
    adapters, unusable = _adapters(settings.l2_adapter, plugins)
    return CheckContext(
        settings, plugins, adapters, unusable, model=model, shards=given.tp, page_tokens=given.page_size
    )


def _adapters(
    given: Sequence[Mapping[str, Any]], plugins: LoadedPlugins
) -> tuple[tuple[AdapterSpec, ...], tuple[ProbeResult, ...]]:
    """Those that can be looked at, and a row for each other one: the rest of the machine is worth a look all the same."""
    specs: list[AdapterSpec] = []
    unusable = []
    for index, values in enumerate(given):
        try:
            specs.append(adapter_spec(values, plugins, f"--l2-adapter[{index}]", [spec.name for spec in specs]))
        except LMCacheError as error:
            name = f"adapter {values.get('type', index)}"
            unusable.append(ProbeResult(name, Level.FAIL, str(error), "fix its settings or remove the adapter"))
    return tuple(specs), tuple(unusable)


def _page(context: CheckContext, report: Report, given: argparse.Namespace) -> Iterator[Block]:
    rows = [
        (Line(result.level.value, _MOODS[result.level]), result.probe, _text_of(result.text, result.remedy))
        for result in report.results
        if not (given.faults and result.level is Level.OK)
    ]
    if rows:
        yield Table(("", "WHAT", "FOUND"), rows)
        yield Line()
    if context.model is not None and context.chunk is not None:
        remark = f" ({context.model.remark})" if context.model.remark else ""
        stored = (
            "once, as it is MLA"
            if context.model.is_mla
            else f"by {context.chunk.shards} worker{'s' if context.chunk.shards > 1 else ''}"
        )
        yield Line(
            f"{context.model.name}: {size_text(context.chunk.bytes_per_token)} per token, "
            f"{size_text(context.chunk.chunk_bytes)} per chunk of {context.chunk.tokens} tokens in {context.model.dtype}, "
            f"stored {stored}{remark}"
        )
    yield Table(
        ("TIER", "CAPACITY", "TOKENS", "A CHUNK COMES IN", "VERDICT"), [tier_row(tier) for tier in report.tiers]
    )
    yield Line(report.estimate, Mood.QUIET)
    if given.fix_hints:
        yield from _fixes(report)
    counts = Counter(result.level for result in report.results)
    worst = Level.FAIL if counts[Level.FAIL] else Level.WARN if counts[Level.WARN] else Level.OK
    yield Line()
    yield Line(f"{counts[Level.OK]} ok, {counts[Level.WARN]} warnings, {counts[Level.FAIL]} failures", _MOODS[worst])


def _text_of(text: str, remedy: str) -> str:
    return f"{text}; {remedy}" if remedy else text


def _fixes(report: Report) -> Iterator[Block]:
    fixes = [result for result in report.results if result.fix and result.level is not Level.OK]
    yield Line()
    yield Line("what would help:" if fixes else "nothing to fix", Mood.HEADING)
    for result in fixes:
        yield Line(f"  {result.fix}    # {result.probe}")


COMMAND: Final = Command(run, parsers)
