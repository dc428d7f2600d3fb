"""`lmcache simulate`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lmcache_core import CommandContext, ConfigError, ResourceError
from lmcache_policies.simulate.arguments import parse
from lmcache_policies.simulate.capacity import capacities
from lmcache_policies.simulate.contenders import choose
from lmcache_policies.simulate.outcome import Rules
from lmcache_policies.simulate.plot import draw, require_matplotlib
from lmcache_policies.simulate.progress import progress_on
from lmcache_policies.simulate.replay import BlockSize
from lmcache_policies.simulate.report import as_json
from lmcache_policies.simulate.table import as_table
from lmcache_policies.simulate.tournament import hold, processes
from lmcache_policies.simulate.trace_file import read_trace

_STDOUT: Final = "-"
_ANY_BLOCK_BYTES: Final = 1 << 20
"""Block size for policies where --block-bytes is not given; all blocks have one size."""


def run_simulate(arguments: Sequence[str], context: CommandContext) -> int:
    """Print the table on standard output; what is in progress or left out goes to standard error.

    Raises ConfigError, ResourceError and PluginError, each of one line."""
    given = parse(arguments)
    if given.plot:
        require_matplotlib()
    for flag, path in (("--json", given.json), ("--plot", given.plot)):
        if path and path != _STDOUT and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"{flag} {path}: the directory does not exist")
    contenders = choose(context.plugins, given.policy, given.all_policies, _note)
    if not contenders:
        raise ConfigError("no eviction policy is installed that evicts; name one with --policy")
    trace = read_trace(given.trace, given.format, given.max_requests)
    sizes = capacities(given.capacity, trace.distinct, given.block_bytes)
    rules = Rules(BlockSize(given.block_bytes or _ANY_BLOCK_BYTES, given.block_tokens), given.evict_ratio)
    tasks = (len(contenders) + 1) * len(sizes)
    progress = progress_on(sys.stderr, tasks, not given.no_progress)
    try:
        jobs = given.jobs or processes(tasks, trace)
        outcome = hold(trace, contenders, sizes, rules, context.plugins, jobs, progress)
    finally:
        progress.close()
    sys.stdout.write(as_json(outcome) if given.json == _STDOUT else as_table(outcome))
    if given.json and given.json != _STDOUT:
        _written(given.json, lambda path: path.write_text(as_json(outcome)))
    if given.plot:
        _written(given.plot, lambda path: draw(outcome, path))
    return 0


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _written(path: str, write: Callable[[Path], object]) -> None:
    try:
        write(Path(path))
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror}") from None
