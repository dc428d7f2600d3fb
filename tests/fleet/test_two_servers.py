"""Two servers on one Redis, and a coordinator: what it knows, keeps within quotas, and finds again after it was killed."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.remote.redis_servers import RedisServer

CHUNKS = 4
CHUNK_TOKENS = 16
OBJECT_BYTES = HEADER_BYTES + 2 * CHUNK_TOKENS * 64 * 4
GIB = 2**30
NO_DELETES = "no-deletes"
"""A user of Redis that may do everything else."""


def prompt(number: int) -> list[int]:
    return [number * 1000 + token for token in range(CHUNKS * CHUNK_TOKENS)]


def wait_for(condition: Callable[[], bool], what: Callable[[], Any], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


class Fleet:
    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        *flags: str,
        users: Sequence[str] = ("", ""),
    ) -> None:
        """`flags` of the coordinator; `users` of Redis, one for each server."""
        self.redis = RedisServer(folder / "redis", free_port(), ("--save", ""))
        self.redis.start()
        stack.callback(self.redis.kill)
        with self.redis.client() as client:
            client.acl_setuser(NO_DELETES, enabled=True, nopass=True, keys="*", commands=["+@all", "-unlink", "-del"])
        flags = flags or ("--eviction-check-interval", "0.5", "--instance-timeout", "5")
        self.coordinator = stack.enter_context(CoordinatorProcess(folder, *flags))
        self.servers = [
            stack.enter_context(ServerProcess(self._options(number, user), folder / f"server-{number}.log"))
            for number, user in enumerate(users)
        ]
        wait_for(lambda: len(self.instances()) == len(users), self.instances)

    def _options(self, number: int, user: str) -> list[str]:
        adapter = {"type": "redis", "url": f"redis://{user}127.0.0.1:{self.redis.port}", "shared": True}
        return [
            *("--l1-size-gb", "0.1", "--chunk-size", str(CHUNK_TOKENS), "--l2-adapter", json.dumps(adapter)),
            *("--coordinator-url", self.coordinator.url, "--instance-id", f"server-{number}"),
            *("--coordinator-l2-event-reporting", "--coordinator-l2-event-flush-interval", "0.1"),
            *("--coordinator-heartbeat-interval", "1", "--coordinator-advertise-ip", "127.0.0.1"),
        ]

    def instances(self) -> list[str]:
        return sorted(each["instance_id"] for each in self.coordinator.ask("GET", "/instances").body["instances"])

    def usage(self) -> dict[str, int]:
        """Bytes by salt, as the coordinator counts them."""
        salts = self.coordinator.ask("GET", "/l2/status").body["by_cache_salt"]
        return {each["cache_salt"]: round(each["usage_gb"] * GIB) for each in salts if each["usage_gb"]}

    def in_redis(self) -> int:
        """Objects of all salts, as a listing says."""
        return len(self.listed())

    def listed(self) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.servers[0].http_port}/cache/objects?tier=l2&page_size=5000"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return list(json.load(answer)["entries"])

    def keys(self) -> dict[tuple[str, str], int]:
        rows = self.coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
        return {(row["instance_id"], row["source"]): row["keys"] for row in rows if row["keys"]}

    def l1_keys(self, instance: str) -> list[str]:
        """Chunk hashes and salts in one server's L1, by way of the coordinator, in pages."""
        path, token, found = f"/directory/keys?tier=l1&instance_id={instance}&limit=3", "", list[str]()
        answers = lambda: self.coordinator.ask("GET", path).status == 200  # noqa: E731
        wait_for(answers, lambda: self.coordinator.ask("GET", path))  # its admin API starts last
        while True:
            page = self.coordinator.ask("GET", path + token).body
            assert page["total"] == self.keys()[instance, "l1"]
            found += [f"{each['key']['chunk_hash_hex']} {each['key']['cache_salt']}" for each in page["keys"]]
            if "next_page_token" not in page:
                return found
            token = f"&page_token={page['next_page_token']}"

    def prefixes(self, salt: str, number: int) -> dict[str, tuple[int, int, int]]:
        """Tokens of a prompt that each server has: anywhere, in memory, in L2."""
        return {
            name: (each["longest_matched"], each["CPU"], each["DISK"])
            for name, each in self._query(salt, number).items()
        }

    def same_family(self, salt: str, number: int) -> dict[str, bool]:
        assert all(self.coordinator.log.read_text().count(word) == 0 for word in ("in its own way", "members_differ"))
        return {name: each["same_family"] for name, each in self._query(salt, number).items()}

    def _query(self, salt: str, number: int) -> dict[str, Any]:
        asked = {"model": "model", "cache_salt": salt, "token_ids": prompt(number)}
        found: dict[str, Any] = self.coordinator.ask("POST", "/query", asked).body["default"]
        return found

    def store(self, server: int, salt: str, *numbers: int) -> None:
        with FakeEngine(f"tcp://127.0.0.1:{self.servers[server].port}", salt=salt) as engine:
            for number in numbers:
                assert engine.store(prompt(number))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def eventually(what: Callable[[], Any], expected: Any) -> None:
    wait_for(lambda: what() == expected, lambda: f"{what()} is not {expected}")


def test_a_fleet_is_seen_kept_within_quotas_and_found_again(fleet: Fleet) -> None:
    fleet.store(0, "a", 1, 2)
    fleet.store(1, "a", 2, 3)
    fleet.store(1, "b", 7)
    objects = {"a": 3 * CHUNKS, "b": CHUNKS}
    sizes = {salt: count * OBJECT_BYTES for salt, count in objects.items()}
    # An object that two servers have stored counts once in what they share.
    eventually(fleet.usage, sizes)
    assert fleet.in_redis() == sum(objects.values())
    eventually(fleet.keys, {("server-0", "l1"): 2 * CHUNKS, ("server-1", "l1"): 3 * CHUNKS, ("", "redis"): 4 * CHUNKS})

    for number in (0, 1):
        l1 = fleet.l1_keys(f"server-{number}")
        assert len(set(l1)) == len(l1) == fleet.keys()[f"server-{number}", "l1"]
        assert set(l1) <= {f"{each['chunk_hash']} {each['cache_salt']}" for each in fleet.listed()}

    # Routers learn where a prompt is cached: by its own memory, and by what all have together.
    tokens = CHUNKS * CHUNK_TOKENS
    assert fleet.prefixes("a", 1) == {"server-0": (tokens, tokens, tokens), "server-1": (tokens, 0, tokens)}
    assert fleet.prefixes("a", 3) == {"server-0": (tokens, 0, tokens), "server-1": (tokens, tokens, tokens)}
    assert fleet.prefixes("b", 3) == {"server-0": (0, 0, 0), "server-1": (0, 0, 0)}, "another tenant's"

    assert fleet.same_family("a", 1) == {"server-0": True, "server-1": True}, "both name chunks as the coordinator does"

    # Nothing was said about quotas: nothing is evicted.
    fleet.coordinator.kill()
    fleet.coordinator.start()
    eventually(fleet.instances, ["server-0", "server-1"])
    eventually(fleet.usage, sizes)
    assert fleet.in_redis() == sum(objects.values())

    # A quota for one salt, in which another one has room.
    assert fleet.coordinator.ask("PUT", "/l2/quota/b", {"limit_gb": 1}).status == 200
    assert fleet.coordinator.ask("PUT", "/l2/quota/a", {"limit_gb": 8 * OBJECT_BYTES / GIB}).status == 200
    wait_for(lambda: fleet.usage().get("a", 0) <= 8 * OBJECT_BYTES, fleet.usage)
    left = fleet.usage()
    assert left["b"] == sizes["b"]
    assert 0 < left["a"] <= 8 * OBJECT_BYTES
    assert fleet.in_redis() * OBJECT_BYTES == sum(left.values())

    # One server leaves, and what it alone had goes with it; what is shared stays.
    fleet.servers[1].stop()
    eventually(fleet.instances, ["server-0"])
    assert {instance for instance, _ in list(fleet.keys())} == {"server-0", ""}
    assert fleet.usage() == left


def test_a_server_that_was_killed_has_its_id_again_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, "--instance-timeout", "600")
        fleet.store(0, "a", 1)
        eventually(fleet.keys, {("server-0", "l1"): CHUNKS, ("", "redis"): CHUNKS})
        fleet.servers[0].kill()
        fleet.servers[0].start()
        eventually(fleet.keys, {("", "redis"): CHUNKS})
        fleet.store(0, "a", 2)
        eventually(fleet.keys, {("server-0", "l1"): CHUNKS, ("", "redis"): 2 * CHUNKS})
