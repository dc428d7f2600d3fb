"""The configuration that people know, and a store of an object with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from lmcache_devkit import free_ports
from tests.remote.mooncake_master import MooncakeMaster

EXAMPLE = """{
  "type": "mooncake_store",
  "num_workers": 4,
  "local_hostname": "node01",
  "metadata_server": "http://localhost:8080/metadata",
  "master_server_addr": "localhost:50051",
  "protocol": "tcp",
  "local_buffer_size": "3221225472",
  "global_segment_size": "3221225472"
}"""


@pytest.mark.slow
def test_doctor_stores_and_loads_an_object_with_it(inside: None, tmp_path: Path) -> None:
    """With the names and ports of this machine in the place of the example's, and less memory."""
    metadata_port, http_port, engine_port = free_ports(3)
    master = MooncakeMaster(
        tmp_path,
        "--enable_http_metadata_server",
        "--http_metadata_server_host=127.0.0.1",
        f"--http_metadata_server_port={metadata_port}",
    )
    here = {
        "local_hostname": "localhost",
        "metadata_server": f"http://localhost:{metadata_port}/metadata",
        "master_server_addr": master.address,
        "local_buffer_size": str(16 << 20),
        "global_segment_size": str(64 << 20),
    }
    given = json.loads(EXAMPLE)
    assert here.keys() <= given.keys()
    command = [
        sys.executable, "-m", "lmcache_core", "doctor", "--l1-size-gb", "0.1", "--http-port", str(http_port),
        "--port", str(engine_port), "--l2-adapter", json.dumps(given | here),
    ]  # fmt: skip
    master.start()
    try:
        # A machine with a loopback interface alone has no address that Mooncake would find by itself.
        environment = quiet_environment() | {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    finally:
        master.kill()
    (line,) = [line for line in done.stdout.splitlines() if "adapter mooncake_store" in line]
    assert line.startswith("ok"), done.stdout + done.stderr
    assert "byte for byte" in line
