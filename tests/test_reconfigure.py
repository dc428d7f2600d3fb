"""A server process that is changed while it runs, over HTTP and by the command line."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import HOST, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.conftest import StartServer
from tests.test_tenants import SMALL_SERVER, endpoint, lmcache, prompt, settle

SECRET = "s3cret-of-no-one"


def ask(server: ServerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    server.status()  # the admin API is up
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{HOST}:{server.http_port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def read_back(engine: FakeEngine, number: int, request: str) -> int:
    hits = engine.lookup(prompt(number), request)
    if hits:
        found = engine.retrieve(prompt(number), request, 0, hits * 16)
        assert found == [engine.content(prompt(number), chunk) for chunk in range(hits)]
    engine.end(request)
    return hits


def test_a_folder_is_added_drained_removed_and_comes_back(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*SMALL_SERVER)
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path / "l2")})
    with FakeEngine(endpoint(server)) as engine:
        assert engine.store(prompt(1))
        assert "adapter 'fs' is in use" in lmcache(server, "adapters", "add", adapter)
        assert engine.store(prompt(2))
        settle(server)
        assert "adapter 'fs' takes no new stores" in lmcache(server, "adapters", "drain", "fs", "--wait")
        assert engine.store(prompt(3))
        settle(server)
        lmcache(server, "clear")
        assert [read_back(engine, number, f"a{number}") for number in (1, 2, 3)] == [0, 10, 0]
        assert "adapter 'fs' was removed" in lmcache(server, "adapters", "remove", "fs", "--wait")
        lmcache(server, "clear")
        assert read_back(engine, 2, "b") == 0
        state = json.loads(lmcache(server, "adapters", "add", adapter, "--json"))
        assert (state["name"], state["index"], state["state"]) == ("fs", 1, "serving")
        assert read_back(engine, 2, "c") == 10, "what the folder holds was left alone"
    status = server.status()
    assert status["l1"]["state_counts_add_up"]
    assert [(row["name"], row["state"], row["type"]) for row in status["l2"]] == [("fs", "serving", "fs")]
    assert server.stop() == 0


def test_mistakes_are_named_and_change_nothing(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*SMALL_SERVER, "--l2-adapter", '{"type": "memory"}')
    for method, path, body, code, says in [
        ("POST", "/l2/adapters", {"type": "fs"}, 422, "adapter: field 'base_path' is required"),
        ("POST", "/l2/adapters", {"type": "fs", "base_path": "/proc/none"}, 422, "/proc/none"),
        ("POST", "/l2/adapters", {"type": 1}, 422, "field 'type' is 1"),
        ("POST", "/l2/adapters/none/drain", None, 404, "no L2 adapter is called 'none'; there are: memory"),
        ("DELETE", "/l2/adapters/memory?deadline_seconds=-1", None, 422, "deadline_seconds"),
        ("DELETE", "/l2/adapters/memory?now=1", None, 422, "no field is called 'now'"),
        ("PATCH", "/settings", {"eviction_ratio": 0.5, "eviction_trigger_watermark": 7}, 422, "watermark' is 7"),
        ("PATCH", "/settings", {}, 422, "the body names no setting"),
        ("PUT", "/settings/port", {"value": 1}, 409, "needs a restart"),
        ("PUT", "/settings/evict", {"value": 1}, 422, "no setting is called 'evict'"),
        (
            "PUT",
            "/settings/evictionratio",
            {"value": 1},
            422,
            "no setting is called 'evictionratio'; did you mean 'evic",
        ),
        ("POST", "/reconfigure/memory/l2/resize", {}, 422, "expected one of add, drain, resume, remove"),
        ("POST", "/reconfigure/fs/l2/drain", {}, 404, "there is no L2 adapter of type 'fs'"),
        ("POST", "/reconfigure/memory/l2/drain", {"adapter_index": 7}, 404, "with index 7"),
    ]:
        answered, problem = ask(server, method, path, body)
        assert (answered, says in str(problem["detail"])) == (code, True), (path, problem)
    assert [row["state"] for row in server.status()["l2"]] == ["serving"]
    assert ask(server, "GET", "/settings")[1]["settings"]["eviction_ratio"] == 0.2


def test_the_paths_of_the_public_server(start_server: StartServer) -> None:
    server = start_server(*SMALL_SERVER, "--l2-adapter", '{"type": "memory"}')
    code, added = ask(server, "POST", "/reconfigure/memory/l2/add", {"max_size_gb": 0.1})
    assert (code, added["name"]) == (202, "memory-2")
    code, found = ask(server, "GET", "/reconfigure/memory/l2/status")
    assert (code, found["enabled"], found["backend"], found["num_adapters"]) == (200, True, "memory", 2)
    assert ask(server, "GET", "/reconfigure/fs/l2/status")[1]["enabled"] is False
    assert ask(server, "POST", "/reconfigure/memory/l2/drain")[1]["name"] == "memory"
    assert ask(server, "POST", "/reconfigure/memory/l2/resume", {})[1]["state"] == "serving"
    code, going = ask(server, "POST", "/reconfigure/memory/l2/remove", {"adapter_index": 1, "force": True})
    assert (code, going["name"]) == (202, "memory-2")
    wait_for(lambda: ask(server, "GET", "/reconfigure/memory/l2/status")[1]["num_adapters"] == 1)
    assert ask(server, "GET", "/l2/adapters/memory-2")[1]["state"] == "removed"


def test_settings_are_shown_as_they_are_now(start_server: StartServer) -> None:
    server = start_server(*SMALL_SERVER)
    shown = lmcache(
        server, "config", "set", "eviction-ratio", "0.1", "eviction_policy", "LRU", "l2_store_drop", "oldest"
    )
    assert 'eviction_policy  "IsolatedLRU"  "LRU"' in shown
    code, answer = ask(server, "PATCH", "/settings", {"eviction_policy": "IsolatedLRU", "default_quota_gb": 0.001})
    assert code == 200
    assert {each["name"]: each["after"] for each in answer["changed"]} == {
        "eviction_policy": "IsolatedLRU",
        "default_quota_gb": 0.001,
    }
    code, problem = ask(server, "PUT", "/settings/eviction_policy", {"value": "LRU"})
    assert (code, "remove the default quota" in problem["detail"]) == (409, True)
    config = {row["name"]: row for row in ask(server, "GET", "/config")[1]["settings"]}
    assert (config["eviction_ratio"]["value"], config["eviction_ratio"]["source"]) == (0.1, "runtime")
    assert (config["eviction_policy"]["value"], config["port"]["source"]) == ("IsolatedLRU", "flag")
    assert server.status()["policies"]["eviction"] == "IsolatedLRU"
    with FakeEngine(endpoint(server), salt="tenant") as engine:
        for number in range(8):
            assert engine.store(prompt(number))
    quota = ask(server, "GET", "/quota/tenant")[1]
    assert quota["current_usage_bytes"] <= quota["limit_bytes"] == round(0.001 * 2**30)


@pytest.mark.parametrize("field", ["token", "password"])
def test_secrets_of_what_is_added_are_nowhere_to_be_seen(start_server: StartServer, tmp_path: Path, field: str) -> None:
    """`inner` takes anything, so that a name is all that tells a secret."""
    options = ("--eviction-policy", "LRU")
    server = start_server(*SMALL_SERVER, *options)
    adapter = {"type": "fault_inject", "inner": {"type": "memory", field: SECRET}}
    code, problem = ask(server, "POST", "/l2/adapters", adapter)
    assert code in (409, 422), "the memory adapter has no such field"
    assert SECRET not in json.dumps(problem)
    inner = {"type": "memory", "max_size_gb": 0.5}
    code, added = ask(server, "POST", "/l2/adapters", {"type": "fault_inject", "inner": inner})
    assert (code, added["settings"]["inner"]) == (201, inner)
    everything = [ask(server, "GET", path)[1] for path in ("/status", "/config", "/l2/adapters", "/settings")]
    assert SECRET not in json.dumps(everything)
    assert SECRET not in server.log
