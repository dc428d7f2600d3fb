"""How much processor time a command of `lmcache` costs beyond that of starting Python.

Usage: ENVIRONMENT/bin/python -m scripts.listing_cost [ARGUMENT ...]      (plugins list, unless said otherwise)

The least of several runs counts: whatever else the machine does only adds to it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence

RUNS = 15


def cpu_milliseconds(command: Sequence[str]) -> float:
    """User and system time of one run, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    arguments = sys.argv[1:] or ["plugins", "list"]
    bare = min(cpu_milliseconds([sys.executable, "-c", "pass"]) for _ in range(RUNS))
    whole = min(cpu_milliseconds([sys.executable, "-m", "lmcache_core", *arguments]) for _ in range(RUNS))
    print(
        f"lmcache {' '.join(arguments)}: {whole - bare:.0f} ms of processor time beyond the interpreter's {bare:.0f} ms"
    )


if __name__ == "__main__":
    main()
