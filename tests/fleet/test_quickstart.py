"""The commands of docs/operate/fleet.md, "Quickstart", run as they are but for their ports."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import LMCACHE
from lmcache_devkit import free_port
from tests.remote.redis_servers import RedisServer

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "fleet.md"


def commands() -> list[str]:
    block = re.search(r"## Quickstart\n+```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return re.sub(r" \\\n *", " ", block[1]).strip().splitlines()


def until(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = ask()
            if good(answer):
                return answer
        except (ValueError, subprocess.CalledProcessError) as error:
            answer = error
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


def test_five_commands_make_a_fleet_with_a_quota(tmp_path: Path) -> None:
    install, *others = commands()
    assert install.startswith("pip install ")
    ports = {"9300": str(free_port()), "6379": str(free_port())}
    moved = [re.sub("9300|6379", lambda found: ports[found[0]], each) for each in others]
    with ExitStack() as stack:
        redis = RedisServer(tmp_path / "redis", int(ports["6379"]), ("--save", ""))
        redis.start()
        stack.callback(redis.kill)

        def start(name: str, command: str, *more: str) -> None:
            program, *arguments = shlex.split(command)
            assert program == "lmcache"
            child = ChildProcess(name, [str(LMCACHE), *arguments, *more], tmp_path / f"{name}.log", quiet_environment())
            stack.callback(child.kill)
            child.start()

        def curl(command: str) -> Any:
            words = shlex.split(command)
            assert words[0] == "curl"
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
            return json.loads(done.stdout)

        coordinator, server, instances, quota = moved
        start("coordinator", coordinator, "--port", ports["9300"], "--state", str(tmp_path / "state.db"))
        own = (
            "--port",
            str(free_port()),
            "--http-port",
            str(free_port()),
            "--prometheus-port",
            "0",
            "--l1-size-gb",
            "0.1",
        )
        start("server", server, *own)
        found = until(lambda: curl(instances), lambda answer: answer["instances"])
        assert [each["instance_id"] for each in found["instances"]] == ["server-1"]
        assert curl(quota) == {"cache_salt": "user-a", "limit_gb": 10.0, "status": "ok"}
