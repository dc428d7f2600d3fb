"""The admin API does what its description says, whatever it is sent: schemathesis drives a real server by /openapi.json."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
TOKEN = "contract-token"
SECONDS_MAX = 540
LEFT_OUT = (
    "positive_data_acceptance",  # a value of the right form can name what is not there
    "negative_data_rejection",  # 413 is not among the statuses that it takes for a refusal
    "use_after_free",  # what is removed in peace can still be asked about
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    folder = tmp_path / "l2"
    options = (
        *("--l1-size-gb", "0.0625", "--chunk-size", "16", "--eviction-policy", "IsolatedLRU"),
        *("--l2-adapter", '{"type": "memory"}', "--l2-adapter", f'{{"type": "fs", "base_path": "{folder}"}}'),
        *("--http-token-file", str(token)),
    )
    with ServerProcess(options, tmp_path / "server.log") as server:
        with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
            engine.store(list(range(64)))  # so that there is something to list, load and delete
        yield server


def test_the_description_is_true(server: ServerProcess, tmp_path: Path) -> None:
    """No fault of the server, no status and no shape that is not described, nothing done without a token, and no hang."""
    done = subprocess.run(
        [
            str(SCHEMATHESIS),
            *("run", f"http://{HOST}:{server.http_port}/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--request-timeout", "15", "--wait-for-schema", "20"),
            *("--checks", "all", "--exclude-checks", ",".join(LEFT_OUT)),
            *("--max-examples", "10", "--generation-deterministic", "--no-color"),
            *("--suppress-health-check", "too_slow"),  # which says how busy the machine is
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
        cwd=tmp_path,
        env=quiet_environment() | {"SCHEMATHESIS_REPORT": "false"},
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    assert server.running
    assert " ERROR " not in server.log
    with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
        assert engine.store(list(range(64, 128)), request="after"), "engines are served as before"
