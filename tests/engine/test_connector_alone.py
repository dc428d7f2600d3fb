"""A real engine with lmcache-vllm from wheels, in an environment without lmcache-core."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

from demo.engine_process import ENGINE_PYTHON, EngineProcess
from demo.environment import core_environment
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, HEARTBEAT_SECONDS

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).parents[2]
CONNECTOR: Final = {
    "libs/client": "lmcache_client",
    "libs/kv_identity": "lmcache_kv_identity",
    "libs/kv_layout": "lmcache_kv_layout",
    "engines/vllm": "lmcache_vllm",
}
"""What `pip install lmcache-vllm` brings of this repository: folders, and the packages in them."""
PUBLIC_COMMAND: Final = "the public package's\n"
WHERE: Final = """
import importlib.util, json, sys
specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: spec and spec.origin for name, spec in specs.items()}))
"""


class ConnectorEnvironment:
    """Wheels of the connector in front of the engine's packages.  Its `bin` has a command `lmcache` before pip runs."""

    def __init__(self, folder: Path) -> None:
        wheels = folder / "wheels"
        pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *(ROOT / each for each in CONNECTOR))
        venv.create(folder / "environment", symlinks=True)
        self.python = folder / "environment/bin/python"
        self.command = self.python.with_name("lmcache")
        self.command.write_text(PUBLIC_COMMAND)
        run(*pip, "--python", self.python, "install", "--no-deps", "--no-index", *sorted(wheels.glob("*.whl")))
        (self.packages,) = (folder / "environment").glob("lib/python*/site-packages")
        # Python reads no `.pth` file of a folder that a `.pth` file names, so editable installs in there are not found.
        (engine_packages,) = ENGINE_PYTHON.parent.parent.glob("lib/python*/site-packages")
        (self.packages / "engine.pth").write_text(f"{engine_packages}\n")

    def where(self, *packages: str) -> dict[str, str | None]:
        """The files that these packages are imported from; None for each that is not there."""
        found: dict[str, str | None] = json.loads(run(self.python, "-c", WHERE, *packages))
        return found


def run(*command: str | Path) -> str:
    environment = core_environment()
    environment.pop("PYTHONPATH", None)
    arguments = list(map(str, command))
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> ConnectorEnvironment:
    return ConnectorEnvironment(tmp_path_factory.mktemp("connector"))


def test_the_environment_has_the_connector_and_no_core(alone: ConnectorEnvironment) -> None:
    found = alone.where("lmcache_core", "lmcache_http", *CONNECTOR.values())
    assert found.pop("lmcache_core") is None
    assert found.pop("lmcache_http") is None
    outside = {package: file for package, file in found.items() if not str(file).startswith(str(alone.packages))}
    assert not outside, "not from the wheels"


def test_the_lmcache_command_stays_the_public_packages(alone: ConnectorEnvironment) -> None:
    assert alone.command.read_text() == PUBLIC_COMMAND


def test_a_prompt_hits_the_second_time(
    alone: ConnectorEnvironment, start_server: StartServer, reference: Reference, tmp_path: Path
) -> None:
    prompts = [random_prompt(60, 1_500), random_prompt(61, 700)]
    truth = reference.answers(prompts)
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS))
    extra = {"lmcache.heartbeat_seconds": HEARTBEAT_SECONDS}
    with EngineProcess(
        tmp_path / "engine.log",
        python=alone.python,
        port=server.port,
        connector="own",
        extra=extra,
        one_process=True,
    ) as engine:
        cold = engine.ask(prompts)
        assert_computed(cold)
        assert_right(cold, truth)
        warm = engine.ask(prompts)
        assert_cached(warm, CHUNK_TOKENS)
        assert_right(warm, truth)
