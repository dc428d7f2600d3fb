"""The public package and ours in one environment, as an engine that has both sees them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.transfer import PUBLIC_SERVER
from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from demo.server_process import HOST, ServerProcess
from lmcache_client import EngineChannel, Heartbeat, ServerChange

pytestmark = pytest.mark.engine

OURS = ("lmcache-client", "lmcache-kv-identity", "lmcache-kv-layout", "lmcache-vllm")
PUBLIC = "lmcache"


@pytest.fixture(scope="module")
def folder(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where nothing can be imported from; skips where only one of the two is installed."""
    folder = tmp_path_factory.mktemp("side-by-side")
    found = json.loads(
        run(
            folder, "-c", "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        )
    )
    if missing := {*OURS, PUBLIC} - set(found):
        pytest.skip(f"not in the engine's environment: {', '.join(sorted(missing))}; run `make setup`")
    return folder


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(ENGINE_PYTHON), *arguments],
        cwd=folder, env=quiet_environment() | {"LMCACHE_DISABLE_BANNER": "1"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("order", [("lmcache", "lmcache_client"), ("lmcache_client", "lmcache")])
def test_one_process_imports_both(folder: Path, order: tuple[str, str]) -> None:
    script = (
        f"import {order[0]}, {order[1]}, lmcache_kv_layout, lmcache_vllm\n"
        "import lmcache.integration.vllm.vllm_multi_process_adapter\n"
        "from lmcache_client import EngineChannel, L1Segment\n"
        "print(lmcache.__file__); print(lmcache_client.__file__); print(EngineChannel.__module__)"
    )
    public, ours, channel = run(folder, "-c", script).splitlines()[-3:]
    assert "/lmcache/" in public
    assert "/lmcache_client/" in ours
    assert channel == "lmcache_client.channel"


def test_no_module_has_two_owners(folder: Path) -> None:
    script = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps({name: sorted(set(owners)) for name, owners in m.packages_distributions().items()}))"
    )
    owners: dict[str, list[str]] = json.loads(run(folder, "-c", script))
    of_public = {name for name, who in owners.items() if PUBLIC in who}
    assert PUBLIC in of_public
    assert (
        of_public & {"lmcache_client", "lmcache_kv_identity", "lmcache_kv_layout", "lmcache_native", "lmcache_vllm"}
        == set()
    )
    assert {name: owners[name] for name in of_public if owners[name] != [PUBLIC]} == {}


def test_the_server_is_not_in_the_environment_and_the_command_is_the_public_one(folder: Path) -> None:
    script = "import importlib.util as u; print([n for n in ('lmcache_core', 'lmcache_native') if u.find_spec(n)])"
    assert "lmcache_core" not in run(folder, "-c", script)
    assert "lmcache.cli.main" in ENGINE_PYTHON.with_name("lmcache").read_text()
    assert "--supported-transfer-mode" in run(folder, "-m", "lmcache.v1.multiprocess.server", "--help")


def test_what_the_connector_brings(folder: Path) -> None:
    """Every distribution that lmcache-vllm needs, with what those need in turn, and no web framework among them."""
    script = """
import importlib.metadata, json
from packaging.requirements import Requirement

needed, wanted = set(), ["lmcache-vllm"]
while wanted:
    if (name := wanted.pop()) not in needed:
        needed.add(name)
        found = map(Requirement, importlib.metadata.requires(name) or ())
        wanted += [each.name for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
print(json.dumps(sorted(needed)))
"""
    needed = set(json.loads(run(folder, "-c", script)))
    assert needed - set(OURS) == {"blake3", "cbor2", "msgspec", "numpy", "pyzmq", "typing-extensions"}


@pytest.mark.slow
def test_vllm_finds_the_connector_and_no_other_part_of_the_public_package(folder: Path) -> None:
    script = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps([[e.name, e.dist.name, callable(e.load())] for e in m.entry_points(group='vllm.general_plugins')]))"
    )
    general = json.loads(run(folder, "-c", script).splitlines()[-1])
    assert ["lmcache_vllm", "lmcache-vllm", True] in general
    assert [name for name, owner, _ in general if owner == PUBLIC] == []


@pytest.mark.slow
def test_our_client_and_the_public_server(folder: Path, tmp_path: Path) -> None:
    """It knows no hello, which is found out in a second, and everything else is as with ours."""
    options = [
        "--l1-size-gb",
        "0.1",
        "--eviction-policy",
        "LRU",
        "--chunk-size",
        "64",
        "--supported-transfer-mode",
        "auto",
    ]
    public = PUBLIC_SERVER
    with (
        ServerProcess(options, tmp_path / "public.log", executable=public) as server,
        EngineChannel(f"tcp://{HOST}:{server.port}") as channel,
    ):
        assert channel.hello() is None
        assert (channel.ping(), channel.get_chunk_size(), channel.noop()) == (True, 64, "OK")
        changes: list[ServerChange] = []
        heart = Heartbeat(channel, changes.append, interval_seconds=0.2)
        heart.start()
        time.sleep(2)
        healthy = heart.healthy
        heart.stop()
        assert (healthy, changes) == (True, [])
