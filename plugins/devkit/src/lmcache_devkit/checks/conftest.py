"""Before the first requirement, what is checked is opened once; where that fails no requirement is run."""

from __future__ import annotations

import pytest

from lmcache_devkit.check_limit import CHECK_SECONDS_MAX
from lmcache_devkit.check_reporter import report_opening, report_unopened
from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.checks.trial_opening import try_to_open


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if not session.items:
        return
    report_opening(CHECK_SECONDS_MAX)
    if unopened := try_to_open(CheckRequest.from_environment()):
        report_unopened(unopened)
        pytest.exit(unopened.text, returncode=pytest.ExitCode.USAGE_ERROR)
