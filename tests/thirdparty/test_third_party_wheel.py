"""A distribution that core has never seen, as a wheel, beside nothing but core and the devkit."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.thirdparty.clean_environment import CleanEnvironment, build_wheels

TOKENS = list(range(1000))

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def site(clean: CleanEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanEnvironment]:
    """With the third party's wheel installed."""
    clean.pip("install", *build_wheels(tmp_path_factory.mktemp("third_party"), Path(__file__).parent / "distribution"))
    yield clean
    clean.pip("uninstall", "-y", "lmcache-l2-drawer")


@pytest.fixture
def settings(tmp_path: Path) -> str:
    return json.dumps({"path": str(tmp_path / "objects.db")})


def test_it_is_listed_beside_ours(site: CleanEnvironment) -> None:
    row = site.plugins()["drawer"]
    assert (row["distribution"], row["version"], row["status"]) == ("lmcache-l2-drawer", "3.1.4", "available")
    shown = site.run(site.lmcache, "plugins", "show", "drawer").stdout
    assert "The database file; its folder must exist." in shown
    example = site.run(site.lmcache, "plugins", "example", "drawer").stdout
    assert '--l2-adapter \'{"type": "drawer"' in example


@pytest.mark.slow
def test_it_meets_every_conformance_requirement(site: CleanEnvironment, settings: str, tmp_path: Path) -> None:
    done = site.run(site.lmcache, "plugins", "check", "drawer", "--settings", settings, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 do not" in done.stdout.splitlines()[-1]


def test_a_server_uses_it_and_finds_everything_after_a_kill(
    site: CleanEnvironment, settings: str, tmp_path: Path
) -> None:
    adapter = json.dumps({"type": "drawer", **json.loads(settings)})
    options = ["--l1-size-gb", "0.1", "--chunk-size", "16", "--l2-adapter", adapter]
    with (
        ServerProcess(options, tmp_path / "log", executable=site.lmcache, core_alone=True) as server,
        closing(sqlite3.connect(tmp_path / "objects.db")) as database,
    ):
        with FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine:
            chunks = len(TOKENS) // 16
            assert engine.store(TOKENS)
            end = time.monotonic() + 30
            while (stored := database.execute("SELECT count(*) FROM objects").fetchone()[0]) < chunks:
                assert time.monotonic() < end, stored
                time.sleep(0.05)
        server.kill()
        server.start()
        with FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine:
            assert engine.lookup(TOKENS) == chunks
            assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(chunks)]


def test_where_it_is_not_installed_the_server_says_so(clean: CleanEnvironment, settings: str) -> None:
    """Runs after the others, when the distribution has been taken away, or before, when it was not there yet."""
    clean.pip("uninstall", "-y", "lmcache-l2-drawer")
    assert "drawer" not in clean.plugins()
    adapter = json.dumps({"type": "drawer", **json.loads(settings)})
    done = clean.run(clean.lmcache, "server", "--l1-size-gb", "0.1", "--l2-adapter", adapter)
    assert done.returncode == 2
    assert "no L2 adapter is called 'drawer'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_flag_of_a_plugin_that_is_not_installed_stops_the_start(clean: CleanEnvironment) -> None:
    """So that no probe of the HTTP API fails in silence."""
    done = clean.run(clean.lmcache, "server", "--l1-size-gb", "0.1", "--http-port", "8081")
    assert done.returncode == 2
    assert done.stderr == "lmcache: --http-port belongs to lmcache-admin: pip install lmcache-admin\n"


def test_a_request_module_that_is_not_installed_stops_the_start(clean: CleanEnvironment) -> None:
    done = clean.run(clean.lmcache, "server", "--l1-size-gb", "0.1", "--engine-type", "blend")
    assert done.returncode == 2
    assert "--engine-type: no request module is called 'blend'" in done.stderr
    assert done.stderr.endswith("Known but not installed: blend -> pip install lmcache-blend\n")
    shown = clean.run(clean.lmcache, "plugins", "show", "blend")
    assert shown.stderr == "lmcache: 'blend' is not installed: pip install lmcache-blend\n"
