"""`lmcache bench l2`"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.commands.server import take_turns
from lmcache_core.app.console.command_line import add_selection_flags, selection_of
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.plan import LOADS, OBJECT_BYTES_MIN, STORES, Plan
from lmcache_tools.bench.plot import draw, require_matplotlib
from lmcache_tools.bench.report import Report
from lmcache_tools.bench.session import Session
from lmcache_tools.bench.sizes import list_of, number_in, size_of
from lmcache_tools.output import output_of
from lmcache_tools.progress_bar import progress_bar

_DEPTH_MAX: Final = 1024
_ROUNDS_MAX: Final = 1000
_ABOUT: Final = (
    "Store and load objects through L2 adapters as a server does, and move the same bytes on the same medium without them, "
    "in turns.  Deletes what it stored."
)
_ADAPTER_HELP: Final = "an adapter as in the configuration of a server; repeatable, they take turns then"
_MEDIUM_HELP: Final = (
    "what to compare with: a directory on such a medium, memory, none, or auto, which reads it from the settings "
    "(default: auto)"
)


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache bench l2", _ABOUT)
    add = parser.add_argument
    add("--l2-adapter", action="append", default=[], metavar="JSON", help=_ADAPTER_HELP)
    add("--sizes", default="4MiB,32MiB", metavar="LIST", help="of whole objects, with commas (default: %(default)s)")
    add("--depths", default="1,4,16", metavar="LIST", help="objects on their way at once (default: %(default)s)")
    add(
        "--loads",
        default="0,100",
        metavar="LIST",
        help="shares of loads in percent: 0 stores only, 100 loads only, 70 both at once (default: %(default)s)",
    )
    add("--bytes", default="512MiB", metavar="SIZE", help="what one pass moves (default: %(default)s)")
    add("--rounds", type=int, default=5, metavar="N", help="passes of each that are counted (default: %(default)s)")
    add("--warmup", type=int, default=1, metavar="N", help="passes before them (default: %(default)s)")
    add("--seconds", type=float, metavar="S", help="begin no other round of a size and depth after S seconds")
    add("--medium", default="auto", metavar="WHAT", help=_MEDIUM_HELP)
    add("--no-verify", action="store_true", help="do not check what was loaded")
    add("--leave-behind", action="store_true", help="measure adapters that cannot delete, and leave objects there")
    add("--timeout-seconds", type=float, default=60.0, metavar="S", help="for any object to end (default: %(default)s)")
    add("--png", metavar="FILE", help="draw speed against depth there; needs lmcache-tools[plot]")
    add("--results", metavar="FILE", help="write all that is known there as JSON, beside what is shown")
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 1 when an object came back wrong or an adapter failed, 130 when it was interrupted; what was measured until
    then is shown."""
    given = parsers()[0].parse_all(arguments)
    plan = _plan(given)
    _check_files(given)
    plugins = selection_of(given).load_for_user()
    specs = adapter_specs([_settings(text, index) for index, text in enumerate(given.l2_adapter)], plugins)
    take_turns()  # as in a server
    with Interruption() as interruption, progress_bar(plan.rounds_at_most) as progress:
        session = Session(
            specs,
            plugins,
            plan,
            asked_medium=given.medium,
            patience_seconds=given.timeout_seconds,
            may_leave=given.leave_behind,
            interruption=interruption,
        )
        report = session.measure(progress)
    _show(report, given)
    if report.failure is not None:
        raise report.failure
    if report.results.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if report.results.wrong else ExitCode.STOPPED


def _plan(given: argparse.Namespace) -> Plan:
    for flag, value, least in (("--rounds", given.rounds, 1), ("--warmup", given.warmup, 0)):
        if not least <= value <= _ROUNDS_MAX:
            raise ConfigError(f"{flag} {value}: expected {least} to {_ROUNDS_MAX}")
    for flag, seconds in (("--seconds", given.seconds), ("--timeout-seconds", given.timeout_seconds)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ConfigError(f"{flag} {seconds:g}: expected more than 0")
    if not given.l2_adapter:
        raise ConfigError('--l2-adapter is missing; give one such as \'{"type": "memory"}\'')
    sizes = list_of("--sizes", size_of, given.sizes)
    if (least := min(sizes)) < OBJECT_BYTES_MIN:
        raise ConfigError(
            f"--sizes: {least} bytes are not an object; expected {OBJECT_BYTES_MIN} or more, header page included"
        )
    return Plan(
        sizes=sizes,
        depths=list_of("--depths", number_in(1, _DEPTH_MAX), given.depths),
        shares=list_of("--loads", number_in(STORES, LOADS), given.loads),
        pass_bytes=list_of("--bytes", size_of, given.bytes)[0],
        rounds=given.rounds,
        warmup_rounds=given.warmup,
        seconds=given.seconds,
        verify=not given.no_verify,
    )


def _settings(text: str, index: int) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--l2-adapter[{index}]: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f'--l2-adapter[{index}]: expected a JSON object, such as \'{{"type": "memory"}}\'')
    return values


def _check_files(given: argparse.Namespace) -> None:
    """Before minutes are spent on what cannot be kept."""
    if given.png:
        require_matplotlib()
    for flag, path in (("--png", given.png), ("--results", given.results), ("--output", given.output)):
        if path and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"{flag} {path}: there is no such directory")


def _show(report: Report, given: argparse.Namespace) -> None:
    output_of(given).show(report.record(), lambda: list(report.page()))
    if given.results:
        CommandOutput(format="json", path=given.results).show(report.record(), "")
    if given.png and any(score.own for score in report.results.scores.values()):
        try:
            draw(report.plan, report.results, Path(given.png))
        except OSError as error:
            raise ResourceError(f"--png {given.png}: cannot be written: {error.strerror}") from None


COMMAND: Final = Command(run, parsers)
