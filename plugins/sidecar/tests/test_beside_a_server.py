"""A server with sidecar programs: they start after the engine port, are seen in its status, and end with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_controller_faults import restarts, trip, wait_for
from lmcache_client.errors import ConfigError
from lmcache_core.controllers import supervisor
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_sidecar.service import SidecarService

PING = """
import json, os, time
import zmq
endpoint = os.environ["LMCACHE_RUNTIME_PLUGIN_ENGINE_ENDPOINT"]
socket = zmq.Context.instance().socket(zmq.DEALER)
socket.connect(endpoint)
with open(os.path.join(json.loads(os.environ["LMCACHE_RUNTIME_PLUGIN_CONFIG"])["folder"], "received.tmp"), "w") as file:
    json.dump(dict(os.environ), file)
os.rename(file.name, file.name[:-4])
time.sleep(1000)
"""


def test_a_program_receives_facts_of_the_server_and_ends_with_it(start_server: StartServer, tmp_path: Path) -> None:
    program = tmp_path / "ping.py"
    program.write_text(PING)
    server = start_server(
        instance_id="node-7",
        runtime_plugin_locations=(str(program),),
        runtime_plugin_config={"folder": str(tmp_path)},
    )
    received_file = tmp_path / "received"
    wait_for(received_file.exists)
    received = json.loads(received_file.read_text())
    assert received["LMCACHE_RUNTIME_PLUGIN_ENGINE_ENDPOINT"] == server.info.engine_endpoint
    assert received["LMCACHE_RUNTIME_PLUGIN_INSTANCE_ID"] == "node-7"
    assert json.loads(received["LMCACHE_RUNTIME_PLUGIN_SERVER"])["chunk_size"] == 16
    status = server.status()["services"]["sidecar"]["programs"][0]
    assert (status["name"], status["state"], status["restarts"]) == ("ping.py", "running", 0)
    assert server.stop(5.0)
    assert server.status()["services"]["sidecar"]["programs"][0]["state"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(status["pid"], 0)


def test_the_thread_of_the_programs_comes_back(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 0.05)
    (tmp_path / "a.sh").write_text("sleep 1000")
    server = start_server(runtime_plugin_locations=(str(tmp_path),))
    wait_for(lambda: server.status()["services"]["sidecar"]["programs"][0]["pid"])
    pid = server.status()["services"]["sidecar"]["programs"][0]["pid"]
    service = server._parts.services.opened()["sidecar"]
    assert isinstance(service, SidecarService)
    trip(service._programs, "_step", monkeypatch)
    wait_for(lambda: restarts(server, "sidecar-programs") == 1 and server.status()["healthy"])
    assert server.status()["services"]["sidecar"]["programs"][0]["pid"] == pid
    with FakeEngine(server.info.engine_endpoint) as engine:
        assert engine.store(list(range(32)))


def test_a_bad_location_stops_the_start_and_leaves_nothing(start_server: StartServer, tmp_path: Path) -> None:
    segments = set(os.listdir("/dev/shm"))
    with pytest.raises(ConfigError, match=r"--runtime-plugin-locations: .*nowhere\.py: No such file"):
        start_server(runtime_plugin_locations=(str(tmp_path / "nowhere.py"),))
    assert not [name for name in set(os.listdir("/dev/shm")) - segments if name.startswith("test-")]


def test_without_programs_there_is_no_thread(start_server: StartServer) -> None:
    server = start_server()
    assert "sidecar" not in server.status()["services"]
    assert "sidecar-programs" not in server.status()["threads"]
