"""The coordinator's API does what its description says, whatever it is sent: schemathesis drives it by /openapi.json."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.coordinator.tests.test_routes import Poster, stored

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
TOKEN = "contract-token"
LEFT_OUT = (
    "positive_data_acceptance",  # a value of the right form can name what is not there
    "negative_data_rejection",  # 413 is not among the statuses that it takes for a refusal
    "use_after_free",  # an id that has left can register again
)
BINARY = "^/fleet/(journal|snapshot|lookup|heartbeat/.*)$"
"""msgpack, which it cannot make: plugins/coordinator/tests/test_bad_pages.py does."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed"),
]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with CoordinatorProcess(tmp_path, "--token-file", str(token), headers=headers) as running:
        one = Poster(running, "one")
        one.send("l1", stored(0, 2))
        one.send("redis", stored(0, 4), shared=True)
        yield running


def test_the_description_is_true(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    """No fault, no status and no shape that is not described, nothing done without a token, and no hang."""
    done = subprocess.run(
        [
            str(SCHEMATHESIS),
            *("run", f"{coordinator.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--request-timeout", "15", "--wait-for-schema", "20"),
            *("--checks", "all", "--exclude-checks", ",".join(LEFT_OUT)),
            *("--exclude-path-regex", BINARY),
            *("--max-examples", "10", "--generation-deterministic", "--no-color"),
            *("--suppress-health-check", "too_slow"),  # which says how busy the machine is
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
        cwd=tmp_path,
        env=quiet_environment() | {"SCHEMATHESIS_REPORT": "false"},
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    log = coordinator.log.read_text()
    assert " ERROR" not in log, log[-5_000:]
    assert coordinator.ask("GET", "/healthz").status == 200
