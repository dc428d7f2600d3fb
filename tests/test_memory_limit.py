"""A fault of an operator's second day that leaves no server to ask: a real control group that is too small for L1."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_devkit import free_ports

LIMIT_BYTES = 400 * 2**20


class Group(NamedTuple):
    processes: Path
    """The file that takes their ids."""
    limit: Path
    """The file with the bytes that they may use."""

    def inside(self, *command: str) -> list[str]:
        """What runs a command in this group."""
        return ["/bin/sh", "-c", f'echo $$ > "{self.processes}" && exec "$@"', "sh", *command]


@pytest.fixture
def small_group() -> Iterator[Group]:
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
        yield Group(group / "cgroup.procs", limit)
    finally:
        group.rmdir()


def _below_ours() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return Path("/sys/fs/cgroup") / path.lstrip("/")


def test_a_control_group_that_is_too_small_is_said_until_it_is_larger(small_group: Group) -> None:
    port, http_port = free_ports(2)
    options = ["--host", HOST, "--port", str(port), "--http-port", str(http_port), "--l1-size-gb", "1"]
    ended = run(small_group.inside(str(LMCACHE), "server", *options))
    assert ended.returncode == ExitCode.RESOURCE, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "l1_size_gb" in line]
    assert "the control group may use 400 MiB" in line
    assert "lower l1_size_gb to 0.26 or less" in line
    looked = run(small_group.inside(str(LMCACHE), "doctor", "--json", *options))
    assert looked.returncode == 1, looked.stderr
    failures = [each["probe"] for each in json.loads(looked.stdout)["results"] if each["level"] == "fail"]
    assert failures == ["memory"]
    assert "3 a port, path or memory" in " ".join(runbook("CacheServerDown").split()), (
        "the alert that fires when nothing answers"
    )

    small_group.limit.write_text(str(2 << 30))
    with subprocess.Popen(small_group.inside(str(LMCACHE), "server", *options), env=quiet_environment()) as server:
        try:
            assert health(http_port) == {"status": "healthy"}
        finally:
            server.terminate()
    assert server.returncode == ExitCode.STOPPED


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=quiet_environment(), check=False)


def runbook(alert: str) -> str:
    text = (Path(__file__).parent.parent / "docs/operate/runbooks.md").read_text()
    return text.partition(f"## {alert}\n")[2].partition("\n## ")[0]


def health(http_port: int) -> object:
    """As soon as there is an answer."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with urlopen(f"http://{HOST}:{http_port}/healthcheck", timeout=5) as answer:
                return json.load(answer)
        except URLError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
