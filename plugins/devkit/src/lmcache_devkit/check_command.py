"""`lmcache plugins check`"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.commands.plugins_show import find_offer
from lmcache_core.app.console.command_line import add_selection_flags, selection_of
from lmcache_core.app.console.exit_code import ExitCode, exit_code
from lmcache_core.app.offer_specs import offer_spec
from lmcache_devkit.conformance import CheckResult, NotOpenedError, SuiteFailedError, check_file, run_checks
from lmcache_devkit.progress_line import ProgressLine

_REASON_LINES: Final = 8
_LEFT_LINES: Final = 20
_QUIET_SECONDS: Final = 10.0
"""A requirement that takes longer is named where no terminal shows which one runs."""
_ONLY_HELP: Final = (
    "only requirements whose names match, as for pytest: words with and, or, not; words that only blanks separate are joined, "
    "so that a name can be given as it is printed"
)


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache plugins check",
        "Run the requirements of its kind against something that a plugin offers, with your own disk, bucket or server, "
        "and remove what that left there.",
    )
    parser.add_argument("name", metavar="NAME", help="an offer such as fs, or kind:name such as l2_adapter:fs")
    parser.add_argument("--settings", metavar="JSON", help="its settings, as in the configuration of a server")
    parser.add_argument(
        "--settings-file", metavar="FILE", help="a file with that JSON, which keeps secrets out of sight"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print every requirement, and all that is known of a failure"
    )
    parser.add_argument("-k", metavar="EXPR", dest="only", help=_ONLY_HELP)
    add_selection_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 0 when every requirement that applies holds, 1 when one does not, 130 when it was interrupted; that of the
    error where it cannot be opened."""
    given = parsers()[0].parse_all(arguments)
    selection = selection_of(given)
    plugins = selection.load_for_user()
    offered = find_offer(plugins, given.name).offered
    assert offered is not None
    kind, name = offered.kind, offered.offer.name
    path = check_file(kind)
    settings, where = _settings(given.settings, given.settings_file)
    if settings.get("type") == name:  # as it is in a configuration
        settings = {field: value for field, value in settings.items() if field != "type"}
    spec = offer_spec(plugins, kind, name, settings, where)
    secrets = sorted(_secrets(spec.settings), key=len, reverse=True)
    counts: Counter[str] = Counter()
    left: list[str] = []
    progress = ProgressLine(sys.stderr)
    interrupted = False
    shown = ""

    def warn(text: str) -> None:
        progress.clear()
        print(_masked(f"warning: {text}", secrets), flush=True)

    def tell(requirement: str, seconds: float) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            progress.show(f"{_so_far(counts)} {requirement}" + (f" ({seconds:.0f} s)" if seconds >= 1 else ""))
        elif seconds >= _QUIET_SECONDS and shown != requirement:
            shown = requirement
            print(f"still running after {seconds:.0f} s: {requirement}", file=sys.stderr, flush=True)

    try:
        progress.show(_so_far(counts))
        # closed before anything is summed up, so that nothing of an interrupted check is running then
        with closing(run_checks(path, kind, name, settings, selection, given.only, warn, tell)) as results:
            for result in results:
                counts[result.outcome] += 1
                left += result.left
                progress.clear()
                for line in _lines(result, given.verbose):
                    print(_masked(line, secrets), flush=True)
                progress.show(_so_far(counts))
    except KeyboardInterrupt:
        interrupted = True
    except SuiteFailedError as error:
        # pytest reads the metadata of everything that is installed, and ends over a part that is damaged
        if damaged := [str(row) for row in plugins.rows() if row.candidate.damage]:
            raise SuiteFailedError(f"{error}; first fix what pytest stumbles over: {'; '.join(damaged)}") from error
        raise
    except NotOpenedError as error:
        progress.clear()
        print(_masked(error.traceback, secrets), end="", file=sys.stderr)
        print(f"lmcache: {_masked(str(error), secrets)}", file=sys.stderr)
        return exit_code(error.reason)
    finally:
        progress.clear()
    for line in _left_behind(left):
        print(_masked(line, secrets))
    print(summary(name, counts) + ("; interrupted" if interrupted else ""), flush=True)
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if counts["broken"] else ExitCode.STOPPED


def _so_far(counts: Mapping[str, int]) -> str:
    return f"{_hold(counts.get('holds', 0))} ..."


def summary(name: str, counts: Mapping[str, int]) -> str:
    """As in "fs: 61 requirements hold, 0 do not, 4 do not apply"."""
    held, broken, other = (counts.get(outcome, 0) for outcome in ("holds", "broken", "not applicable"))
    return f"{name}: {_hold(held)}, {broken} {_do(broken)} not, {other} {_do(other)} not apply"


def _hold(count: int) -> str:
    return f"{count} requirement holds" if count == 1 else f"{count} requirements hold"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"


def _settings(text: str | None, file: str | None) -> tuple[dict[str, Any], str]:
    """The settings and what to call them in messages."""
    if text is not None and file is not None:
        raise ConfigError("--settings and --settings-file: give one of them")
    where = f"--settings-file {file}" if file is not None else "--settings"
    try:
        values = json.loads(Path(file).read_text("utf-8") if file is not None else text or "{}")
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a JSON object of settings")
    return values, where


def _lines(result: CheckResult, verbose: bool) -> list[str]:
    if result.outcome == "holds":
        return [f"holds: {result.requirement}"] if verbose else []
    if result.outcome == "not applicable":
        return [f"does not apply: {result.requirement} ({result.reason})"] if verbose else []
    said = (result.whole if verbose else result.reason).splitlines()
    shown = said if verbose else [line for line in said if line.strip()][:_REASON_LINES]
    more = ["..."] if len(shown) < len(said) and not verbose else []
    return [f"does not hold: {result.requirement}", *(f"    {line}" for line in (*shown, *more))]


def _left_behind(left: Sequence[str]) -> list[str]:
    if not left:
        return []
    count = "1 object was" if len(left) == 1 else f"{len(left)} objects were"
    return [
        f"{count} left behind, because the adapter could not or must not delete what it stored:",
        *(f"    {each}" for each in left[:_LEFT_LINES]),
        *(["    ..."] if len(left) > _LEFT_LINES else []),
    ]


def _secrets(value: Any) -> Iterator[str]:
    """What must not be printed although a failure may quote it."""
    if isinstance(value, SecretStr | SecretBytes):
        secret = value.get_secret_value()
        text = secret if isinstance(secret, str) else secret.decode(errors="replace")
        yield from (text,) if text else ()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets(getattr(value, name))
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _secrets(inner)


def _masked(line: str, secrets: list[str]) -> str:
    for secret in secrets:
        line = line.replace(secret, "**********")
    return line


CHECK: Final = Command(run, parsers)
