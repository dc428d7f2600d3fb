"""Whole servers whose directory is replaced, or holds what another version wrote."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo.server_process import HOST, ServerProcess
from lmcache_core import HEADER_BYTES, media_path
from lmcache_core.model.object_header import seal
from lmcache_devkit import object_key
from tests.conftest import StartServer

CONDITION_SECONDS = 15.0


def fs(root: Path, **more: Any) -> list[str]:
    return ["--l1-size-gb", "0.05", "--l2-adapter", json.dumps({"type": "fs", "base_path": str(root), **more})]


def put_objects(root: Path, count: int, version: int = 1) -> None:
    for number in range(count):
        run = bytearray(HEADER_BYTES + 100)
        seal(memoryview(run), object_key(number), created_ns=1)
        run[8:10] = version.to_bytes(2, "little")
        path = root / media_path(object_key(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(run)


def files(root: Path) -> int:
    return len(list(root.rglob("*.kv")))


def delete_everything(server: ServerProcess) -> dict[str, Any]:
    """What the deletion says in the end."""
    server.status()  # the API is open
    url = f"http://{HOST}:{server.http_port}"
    said, where = ask(urllib.request.Request(f"{url}/l2?everything=true", method="DELETE"))
    while said["status"] == "running":
        time.sleep(0.1)
        said, _ = ask(urllib.request.Request(f"{url}{where}"))
    return said


def ask(request: urllib.request.Request) -> tuple[dict[str, Any], str | None]:
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer), answer.headers.get("Location")


def wait(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + CONDITION_SECONDS
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def conditions(server: ServerProcess) -> list[str]:
    return [condition["name"] for condition in server.status()["conditions"]]


def test_a_server_that_stops_deletes_nothing_of_the_one_that_took_its_directory(
    start_server: StartServer, tmp_path: Path
) -> None:
    root = tmp_path / "l2"
    first = start_server(*fs(root, persist_enabled=False))
    shutil.rmtree(root)
    second = start_server(*fs(root))
    put_objects(root, 160)
    wait(lambda: "medium_replaced" in conditions(first), "the condition did not begin")
    assert "medium_replaced" not in conditions(second)
    assert first.stop() == 0
    assert files(root) == 160
    assert second.stop() == 0


def test_deleting_everything_takes_objects_of_another_version_along(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "l2"
    put_objects(root, 40, version=2)
    server = start_server(*fs(root))
    put_objects(root / "elsewhere", 1)
    said = delete_everything(server)
    assert (said["deleted"], said["failed"], said["ok"]) == (40, 0, True)
    assert files(root) == 1, "what is not in its place is not ours"
    assert server.stop() == 0
