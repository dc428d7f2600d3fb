"""What `lmcache doctor` says of an engine's environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from lmcache_core import CheckResult


def check(settings: None) -> Iterator[CheckResult]:
    """Nothing where the public package is not installed.  Imports nothing of it."""
    try:
        public = version("lmcache")
    except PackageNotFoundError:
        return
    yield CheckResult(
        "warn",
        f"this environment has the public package, lmcache {public}, too: vLLM does not start in-process beside it, and the "
        "one that was installed last owns the command `lmcache`",
        "pip uninstall lmcache, then pip install --force-reinstall --no-deps lmcache-core; or give each an environment",
    )
