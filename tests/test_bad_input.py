"""What is wrong with a command line is said in one line, with the remedy, and the exit status says of which kind it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE
from lmcache_devkit import free_port
from tests.conftest import StartServer

USAGE, RESOURCE = 2, 3


def refused(*options: str) -> tuple[int, str]:
    """The exit status of `lmcache server` with these options, and what it printed."""
    ports = ["--host", HOST, "--port", str(free_port()), "--http-port", str(free_port())]
    command = [str(LMCACHE), "server", *ports, "--l1-size-gb", "0.05", *options]
    done = subprocess.run(
        command,
        env=quiet_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("lmcache: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, lines[0]


def adapter(**fields: object) -> list[str]:
    return ["--l2-adapter", json.dumps(fields)]


@pytest.mark.parametrize(
    ("options", "status", "parts"),
    [
        (
            adapter(type="s4"),
            USAGE,
            ["--l2-adapter[0]", "'s4'", "did you mean 's3'?", "Installed: ", " fs (lmcache-l2-fs "],
        ),
        (["--engine-type", "blent"], USAGE, ["no request module is called 'blent'", "Installed: "]),
        (
            ["--engine-type", "blend", "--supported-transfer-mode", "engine_driven", "--no-l1-shared-memory"],
            USAGE,
            ["--engine-type blend", "--supported-transfer-mode engine_driven", "--no-l1-shared-memory", "leave one"],
        ),
        (
            ["--engine-type", "blend_legacy", "--supported-transfer-mode", "engine_driven"],
            USAGE,
            ["--engine-type blend_legacy", "--supported-transfer-mode engine_driven", "use auto or lmcache_driven"],
        ),
        (
            ["--engine-type", "blend_legacy", "--blend-special-tokens", "674,#"],
            USAGE,
            ["--blend-special-tokens", "'#'", "valid integer"],
        ),
        (adapter(type="fs", base_pth="/tmp"), USAGE, ["'base_pth'", "did you mean 'base_path'?"]),
        (adapter(type="fs"), USAGE, ["field 'base_path' is required"]),
        (adapter(type="fs", base_path="/proc/nope"), RESOURCE, ["'/proc/nope' cannot be used", "create and write to"]),
        (["--l2-adapter", "{type:fs}"], USAGE, ["--l2-adapter", "not JSON"]),
        (["--eviction-polcy", "LRU"], USAGE, ["--eviction-polcy", "did you mean --eviction-policy?"]),
        (["--eviction-policy", "LFUU"], USAGE, ["--eviction-policy: ", "'LFUU'", "did you mean 'LFU'?"]),
        (["--l1-size-gb", "-1"], USAGE, ["--l1-size-gb", "greater than or equal to 0.001"]),
        (
            ["--supported-transfer-mode", "lmcache_driven", "--no-plugin", "transfer_torch"],
            USAGE,
            ["request module 'lmcache_driven'", "blocked by --no-plugin"],
        ),
        (["--plugin", "nonesuch"], USAGE, ["nonesuch"]),
        (["--http-host", "0.0.0.0"], USAGE, ["http"]),
        (["--l1-size-gb", "1000000"], RESOURCE, ["lower l1_size_gb"]),
    ],
)
def test_one_line_that_names_the_thing_and_the_remedy(options: list[str], status: int, parts: list[str]) -> None:
    code, line = refused(*options)
    assert code == status, line
    assert all(part in line for part in parts), line


def test_what_another_server_has_is_not_taken_from_it(start_server: StartServer, tmp_path: Path) -> None:
    owned = adapter(type="fs", base_path=str(tmp_path / "l2"))
    first = start_server("--l1-size-gb", "0.05", "--shm-name", f"mine-{free_port()}", *owned)
    name = first.status()["l1"]["segment"].removeprefix("lmcache-l1-")
    for options, part in (
        (owned, "in use by server"),
        (["--port", str(first.port)], "choose another --port"),
        (["--http-port", str(first.http_port)], "choose another --http-port"),
        (["--shm-name", name], "choose another --shm-name"),
    ):
        code, line = refused(*options)
        assert (code, part in line) == (RESOURCE, True), line
    assert first.status()["healthy"]
    assert first.stop() == 0
