"""A server in a real control group that is too small for its L1 does not start."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.testing import free_port

LIMIT_BYTES = 400 * 2**20


@pytest.fixture
def small_group() -> Iterator[Path]:
    """The file that takes the ids of processes."""
    try:
        group = _below_ours() / f"lmcache-test-{uuid.uuid4().hex[:8]}"
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        limit = next(
            (group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()), None
        )
        if limit is None:
            pytest.skip("this control group cannot limit memory")
        limit.write_text(str(LIMIT_BYTES))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def _below_ours() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return Path("/sys/fs/cgroup") / path.lstrip("/")


def test_a_control_group_that_is_too_small_is_said_at_the_start(small_group: Path) -> None:
    command = [str(LMCACHE), "server", "--host", HOST, "--port", str(free_port()), "--no-http", "--l1-size-gb", "1"]
    ended = subprocess.run(
        ["/bin/sh", "-c", f'echo $$ > "{small_group}" && exec "$@"', "sh", *command],
        capture_output=True, text=True, timeout=60, env=quiet_environment(), check=False,
    )  # fmt: skip
    assert ended.returncode == ExitCode.RESOURCE, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "l1_size_gb" in line]
    assert "the control group may use 400 MiB" in line
    assert "lower l1_size_gb to 0.26 or less" in line
