"""Programs of SGLang's environment, which the tests here run and do not import: each prints what its checks said, as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from demo.server_process import ServerProcess
from demo.sglang_process import SGLANG_PYTHON, sglang_environment

MARKS: Final = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`"),
]


def names_of(program: Path) -> list[str]:
    return re.findall(r"^def (check_\w+)", program.read_text(), re.MULTILINE)


def results_of(program: Path, server: ServerProcess) -> dict[str, Any]:
    """The traceback of each check, empty where it passed, and all of stderr as `log`."""
    ran = subprocess.run(
        [str(SGLANG_PYTHON), str(program), str(server.port), str(server.http_port), str(server.pid)],
        env=sglang_environment() | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found | {"log": ran.stderr}
