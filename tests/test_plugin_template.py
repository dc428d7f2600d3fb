"""`lmcache plugins new`: what it writes can be installed, is listed, keeps the requirements of its kind, and can be removed."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import preloaded
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_devkit.new_plugin import KINDS

pytestmark = pytest.mark.timeout(300)


class Site:
    """An environment of its own, which sees core and what it needs, and into which plugins are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv/bin/python"
        (packages,) = (folder / "venv").glob("lib/python*/site-packages")
        ours = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
        # not only a path: core may be installed as a link, which is read by `addsitedir` alone
        lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(ours)]
        (packages / "core.pth").write_text("\n".join(lines))

    def pip(self, *arguments: str) -> None:
        self.run(sys.executable, "-m", "pip", "--python", str(self.python), "-q", *arguments)

    def lmcache(self, *arguments: str) -> str:
        return self.run(str(self.python), "-m", "lmcache_core", *arguments)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=240,
            env=quiet_environment() | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def offers(self) -> set[str]:
        """What is usable, as kind:name."""
        rows = json.loads(self.lmcache("plugins", "list", "--json"))
        assert [row for row in rows if row["error"]] == []
        return {f"{offer['kind']}:{offer['name']}" for row in rows for offer in row["offers"]}


NAME = "thing"
"""One vendor's name for a plugin of each kind."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With a new plugin of each kind installed, all of which are gone again afterwards."""
    site = Site(tmp_path_factory.mktemp("site"))
    before = site.offers()
    for kind in KINDS:
        new = (sys.executable, "-m", "lmcache_core", "plugins", "new", kind, NAME, "--into", str(site.folder))
        done = preloaded().run(new, quiet_environment())
        assert done.returncode == 0, done.stderr
    folders = sorted(site.folder.glob("lmcache-*"))
    assert len(folders) == len(KINDS)
    site.pip("install", "--no-deps", "--no-build-isolation", *map(str, folders))
    assert site.offers() - before == {f"{kind}:{NAME}" for kind in KINDS}
    yield site
    site.pip("uninstall", "-y", *(folder.name for folder in folders))
    assert site.offers() == before


_OFTEN = (OfferKind.L2_ADAPTER, OfferKind.SERDE)


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in _OFTEN else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
        if kind is not OfferKind.COMMAND
    ],
)
def test_what_is_new_keeps_the_requirement_of_its_kind(site: Site, kind: OfferKind) -> None:
    """And leaves no file behind: among those of L2 adapters is one that kills a process that stores."""
    folder = site.folder / "kv"
    policy = {"eviction_policy": "LRU"}
    state = {"address": str(site.folder / "state")}
    needed = {OfferKind.L2_ADAPTER: {"base_path": str(folder)}, "coordinator_state": state, "l2_eviction": policy}
    settings = json.dumps(needed.get(kind, {}))
    said = site.lmcache("plugins", "check", f"{kind}:{NAME}", "--settings", settings)
    assert "warning: " not in said
    assert [path for path in folder.rglob("*") if not path.is_dir()] == []
    last = said.splitlines()[-1]
    assert last.startswith(f"{NAME}: ")
    assert " 0 do not, " in last
    assert not last.startswith(f"{NAME}: 0 ")


def test_what_a_killed_process_left_is_removed_at_the_next_opening(site: Site) -> None:
    unfinished = site.folder / "killed" / ".unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / ".part-killed").write_bytes(b"half")
    held = (unfinished / ".part-held").open("wb")
    with held:
        flock(held, LOCK_EX)
        settings = json.dumps({"base_path": str(unfinished.parent)})
        site.lmcache("plugins", "check", "l2_adapter:thing", "--settings", settings, "-k", "declare the same")
        assert [path.name for path in unfinished.iterdir()] == [".part-held"]


def test_a_folder_that_is_not_available_is_one_line_that_names_the_setting(site: Site) -> None:
    settings = json.dumps({"base_path": "/proc/nope"})
    command = (str(site.python), "-m", "lmcache_core", "plugins", "check", "l2_adapter:thing", "--settings", settings)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet_environment(), timeout=240)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "lmcache: thing: base_path '/proc/nope' cannot be used (No such file or directory); name another\n"
    )


def test_a_new_command_runs(site: Site) -> None:
    name = NAME
    assert "LRU: Least recently used first" in site.lmcache(name).splitlines()
    assert name in site.lmcache("--help")


def test_what_is_new_is_well_formed(site: Site) -> None:
    folders = [str(folder) for folder in site.folder.glob("lmcache-*")]
    rules = ("--isolated", "--line-length=120", "--target-version=py311")
    site.run(sys.executable, "-m", "ruff", "check", *rules, "--select=E,F,W,B,UP,C4,SIM,RET,RUF,PT,N", *folders)
    site.run(sys.executable, "-m", "ruff", "format", "--check", *rules, *folders)


def test_its_own_tests_pass(site: Site) -> None:
    """Those of one kind that has a suite, and of the one that has none."""
    tests = [f"{distribution}/tests" for distribution in ("lmcache-command-thing", "lmcache-prefetch-thing")]
    site.run(str(site.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
