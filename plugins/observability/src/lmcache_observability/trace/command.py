"""`lmcache trace`"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from lmcache_core import CommandContext, ConfigError, ResourceError
from lmcache_observability.trace.arguments import parse
from lmcache_observability.trace.conversion import FORMS
from lmcache_observability.trace.reader import TraceReader
from lmcache_observability.trace.report import info_json, info_text
from lmcache_observability.trace.summary import summarise


def run_trace(arguments: Sequence[str], context: CommandContext) -> int:
    """Raises ConfigError and ResourceError, each of one line.  1: a replay returned a wrong byte."""
    given, server_flags = parse(arguments)
    match given.command:
        case "info":
            _info(given)
        case "convert":
            _convert(given)
        case _:
            # the client library takes longer to load than the other commands run
            from lmcache_observability.trace.replay import run_replay

            return run_replay(given, server_flags)
    return 0


def _info(given: Namespace) -> None:
    reader = TraceReader(given.file)
    summary = summarise(given.file, reader)
    summary.torn_bytes = reader.torn_bytes
    print(json.dumps(info_json(summary), indent=2) if given.json else info_text(summary))


def _convert(given: Namespace) -> None:
    reader = TraceReader(given.file)
    lines = FORMS[given.to](reader)
    if given.output is None:
        for line in lines:
            print(line)
        return
    if os.path.exists(given.output) and os.path.samefile(given.output, given.file):
        raise ConfigError(f"--output {given.output} is the recording itself")
    try:
        with open(given.output, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise ResourceError(f"{given.output} cannot be written: {error.strerror}") from None
    if reader.torn_bytes:
        print(f"{given.file}: {reader.torn_bytes} bytes at the end are torn and left out", file=sys.stderr)
