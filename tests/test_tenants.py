"""Tenants of one server, as an operator sees them: quotas over HTTP and the command line, and what they keep apart."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from demo.child_process import ChildError
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.conftest import StartServer

SLOT = 8192 + 4096
"""Of a chunk of 16 tokens as a fake engine has it."""
SMALL_SERVER = ("--l1-size-gb", "0.0625", "--chunk-size", "16", "--eviction-policy", "IsolatedLRU")
QUOTA_GB = 1 / 1024
QUOTA_SLOTS = 2**20 // SLOT


def lmcache(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    """What the command prints, on either stream."""
    server.status()  # the admin API is up
    command = [str(LMCACHE), *arguments, "--url", f"http://{HOST}:{server.http_port}"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def endpoint(server: ServerProcess) -> str:
    return f"tcp://{HOST}:{server.port}"


def usage(server: ServerProcess, salt: str) -> dict[str, Any]:
    server.status()  # the admin API is up
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/quota/{salt}", timeout=10) as answer:
        given: dict[str, Any] = json.load(answer)
    return given


def prompt(number: int, chunks: int = 10) -> list[int]:
    return [number * 1000 + token for token in range(16 * chunks)]


def settle(server: ServerProcess) -> None:
    """Until nothing is on its way to L2."""
    deadline = time.monotonic() + 10
    while server.status()["store"]["backlog_bytes"] and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_tenant_keeps_its_newest_within_its_quota_and_others_lose_nothing(start_server: StartServer) -> None:
    server = start_server(*SMALL_SERVER)
    assert lmcache(server, "quota", "set", "tenant-a", "--limit-gb", str(QUOTA_GB)) == (
        "'tenant-a' may use 0.000977 GiB of L1\n"
    )
    with FakeEngine(endpoint(server), salt="tenant-a") as a, FakeEngine(endpoint(server), salt="tenant-b") as b:
        for number in range(20):
            b.store(prompt(number), f"b{number}")
            a.store(prompt(number), f"a{number}")
            assert a.lookup(prompt(number), f"a{number}") == 10, "at its quota it waits for its own oldest to leave"
            a.end(f"a{number}")
            answer = usage(server, "tenant-a") if number % 5 == 4 else None
            assert answer is None or answer["current_usage_bytes"] <= answer["limit_bytes"] == 2**20
        assert a.lookup(prompt(19), "newest") == 10
        assert a.retrieve(prompt(19), "newest") == [a.content(prompt(19), chunk) for chunk in range(10)]
        a.end("newest")
        assert a.lookup(prompt(0), "oldest") == 0
        for number in range(20):
            assert b.lookup(prompt(number), f"b{number}") == 10
            b.end(f"b{number}")
        assert usage(server, "tenant-b")["current_usage_bytes"] == 200 * SLOT
        assert usage(server, "tenant-a")["current_usage_bytes"] >= QUOTA_SLOTS // 2 * SLOT
    assert server.logs("quota changed cache_salt='tenant-a' limit_bytes=1048576"), server.log
    shown = {quota["cache_salt"]: quota for quota in server.status()["quotas"]["largest"]}
    assert shown["tenant-b"] == {"cache_salt": "tenant-b", "limit_bytes": None, "used_bytes": 200 * SLOT}
    assert shown["tenant-a"]["limit_bytes"] == 2**20


def test_a_lowered_quota_is_kept_at_once_and_a_clear_leaves_the_quotas(start_server: StartServer) -> None:
    server = start_server(*SMALL_SERVER)
    with FakeEngine(endpoint(server), salt="tenant-a") as a:
        a.store(prompt(1, 60))
        assert usage(server, "tenant-a")["current_usage_bytes"] == 60 * SLOT
        lmcache(server, "quota", "set", "tenant-a", "--limit-gb", "0")
        deadline = time.monotonic() + 10
        while usage(server, "tenant-a")["current_usage_bytes"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert usage(server, "tenant-a")["current_usage_bytes"] == 0
        a.store(prompt(2))
        assert a.lookup(prompt(2)) == 0
        lmcache(server, "quota", "set", "tenant-a", "--limit-gb", "1")
        a.store(prompt(3))
    assert lmcache(server, "clear") == "dropped 10 objects of L1\n"
    assert usage(server, "tenant-a")["limit_gb"] == 1.0
    assert lmcache(server, "quota", "delete", "tenant-a") == "'tenant-a' has no quota of its own any more\n"


def test_quotas_of_the_configuration_are_there_again_after_a_restart(start_server: StartServer) -> None:
    quotas = ("--quota", '{"tenant-a": 2.5, "_default": 1}', "--quota", '{"b": 0}', "--default-quota-gb", "0.25")
    server = start_server(*SMALL_SERVER, *quotas)
    lmcache(server, "quota", "delete", "b")
    server.stop()
    server.start()
    assert lmcache(server, "quota", "list").splitlines() == [
        "SALT      LIMIT GIB  USED GIB  USED BYTES",
        "_default  1          0         0",
        "b         0          0         0",
        "tenant-a  2.5        0         0",
        "salts without a quota of their own: 0.25 GiB each",
    ]


def test_one_tenant_finds_nothing_of_another_one_in_either_tier(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*SMALL_SERVER, "--l2-adapter", json.dumps({"type": "fs", "base_path": str(tmp_path / "l2")}))
    with FakeEngine(endpoint(server), salt="tenant-a") as a, FakeEngine(endpoint(server), salt="tenant-b") as b:
        a.store(prompt(1))
        settle(server)
        a.end()
        assert b.lookup(prompt(1)) == 0
        assert b.retrieve(prompt(1)) is None
        b.end()
        lmcache(server, "clear", "--force")
        assert b.lookup(prompt(1)) == 0
        assert b.retrieve(prompt(1)) is None
        b.end()
        assert usage(server, "tenant-b")["current_usage_bytes"] == 0
        assert a.lookup(prompt(1)) == 10, "it is there, for whom it belongs to"
        a.end()


def test_what_a_tenant_has_in_l2_comes_back_within_its_quota(start_server: StartServer, tmp_path: Path) -> None:
    quota = ("--quota", json.dumps({"tenant-a": QUOTA_GB}))
    l2 = ("--l2-adapter", json.dumps({"type": "fs", "base_path": str(tmp_path / "l2")}))
    server = start_server(*SMALL_SERVER, *quota, *l2)
    with FakeEngine(endpoint(server), salt="tenant-a") as a:
        for number in range(20):
            a.store(prompt(number), f"a{number}")
            settle(server)
        hits = {}
        for number in (0, 1, 2, 19):
            for attempt in range(20):
                hits[number] = a.lookup(prompt(number), f"again {number} {attempt}")
                answer = usage(server, "tenant-a")
                assert answer["current_usage_bytes"] <= answer["limit_bytes"]
                found = a.retrieve(prompt(number), f"again {number} {attempt}", end=16 * hits[number])
                assert not found or found == [a.content(prompt(number), chunk) for chunk in range(hits[number])]
                a.end(f"again {number} {attempt}")
                if hits[number] == 10:
                    break
        assert hits == dict.fromkeys(hits, 10)


@pytest.mark.parametrize("flags", [("--quota", '{"a": 1}'), ("--default-quota-gb", "0")])
def test_a_start_with_quotas_that_cannot_be_kept_says_what_to_do(
    start_server: StartServer, flags: tuple[str, ...]
) -> None:
    with pytest.raises(ChildError, match="'LRU' does not; start the server with --eviction-policy IsolatedLRU"):
        start_server("--l1-size-gb", "0.0625", *flags)


def test_a_running_server_refuses_a_quota_that_it_cannot_keep(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.0625")
    refusal = lmcache(server, "quota", "set", "a", "--limit-gb", "1", code=1)
    assert "answers 409 Conflict: a quota needs an eviction policy that takes room from one cache salt alone" in refusal
    assert refusal.endswith("start the server with --eviction-policy IsolatedLRU\n")
