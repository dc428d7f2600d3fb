"""Each distribution is a wheel that works alone."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[1]
CORE = ["builtin"]
"""The plugins of core's own distribution."""
TOKENS = list(range(100))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=quiet_environment(),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_core_is_useful_alone_and_a_plugin_is_found_once_it_is_installed(tmp_path: Path) -> None:
    for folder in ("core", "libs/client", "libs/l2_adapter", "plugins/l2_fs", "libs/object_files"):
        run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path,
            ROOT / folder,
        )
    client, core, base, plugin, library = sorted(tmp_path.glob("*.whl"))
    venv.create(tmp_path / "clean", with_pip=True)
    python, lmcache = tmp_path / "clean/bin/python", tmp_path / "clean/bin/lmcache"
    run(python, "-m", "pip", "install", "-q", client, core, cwd=tmp_path)
    assert "torch" not in run(python, "-m", "pip", "list")
    assert [row["name"] for row in listed(lmcache)] == CORE
    options = ["--l1-size-gb", "0.1", "--chunk-size", "16", "--l2-adapter", '{"type": "memory"}']
    with (
        ServerProcess(options, tmp_path / "log", executable=lmcache, core_alone=True) as server,
        FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine,
    ):
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS) == len(TOKENS) // 16
        assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(len(TOKENS) // 16)]
        assert server.logs("adapters=memory")
    run(python, "-m", "pip", "install", "-q", base, library, plugin, cwd=tmp_path)
    assert [row["name"] for row in listed(lmcache)] == [*CORE, "fs"]
    run(python, "-m", "pip", "uninstall", "-q", "-y", "lmcache-l2-fs")
    assert [row["name"] for row in listed(lmcache)] == CORE


def listed(lmcache: Path) -> list[dict[str, str]]:
    rows = json.loads(run(lmcache, "plugins", "list", "--json"))
    plugins: list[dict[str, str]] = rows["plugins"] if isinstance(rows, dict) else rows
    return plugins
