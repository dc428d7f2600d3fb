"""A coordinator under everything that clients may send, for an hour: does its memory stay?

.venv/bin/python -m benchmarks.fleet_soak [--minutes 60] [--members 20]

Servers store and delete, leave and come under other names, lose messages and are asked for snapshots; salts, quotas, pins,
posters without registration and bad requests are never the same twice.  What is alive at a time is always as much."""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.fleet_http import (
    CHUNK_TOKENS,
    MODEL,
    QUERY_CHUNKS,
    Client,
    by_hash,
    coordinator_with_token,
    json_request,
    request,
)
from benchmarks.machine import description
from benchmarks.soak.samples import anonymous_bytes
from benchmarks.soak.trend import trend
from lmcache_coordinator.posted_events import INSTANCES_MAX
from lmcache_coordinator.spaces import SPACES_MAX
from lmcache_core import HashChain, KeySpace
from lmcache_fleet.messages import HASH_BYTES, L1, FullSync, JournalPage, Kind, Reply, Run, SnapshotPage, encode
from lmcache_fleet.messages import SPACES_MAX as PAGE_SPACES_MAX
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

SHARED: Final = "shared"
"""The name of the adapter that all servers have."""
BATCH: Final = 100
"""Keys that one message is about."""
BATCHES: Final = 200
"""That a server's L1 holds."""
TOLERANCE: Final = 4096.0
"""Bytes per 1,000 requests that count as flat."""
WARM_UP: Final = 0.25
"""Share of the time that is not looked at."""
LEAVES: Final = 0.01
"""Of steps after which a server leaves and another one comes."""
LOSES: Final = 0.02
"""Of messages."""
SALTS: Final = 40
"""Batches in the shared backend, and salts with a quota."""


def space(salt: str) -> bytes:
    return KeySpace(MODEL, 0x01000100, 0, salt, CHUNK_TOKENS, HashChain.BLAKE3, bytes(16)).tail


class Batch(NamedTuple):
    salt: str
    hashes: bytes


class Member:
    """One server: its L1, and the shared backend, which holds the last batches of all servers."""

    def __init__(self, name: str, client: Client, random_: random.Random, shared: deque[Batch]) -> None:
        self.name, self._client, self._random = name, client, random_
        self._next = {L1: 0, SHARED: 0}
        self._batches = {L1: deque[Batch](), SHARED: shared}
        self._snapshots = 0
        for _ in range(BATCHES):
            self._batches[L1].append(self._batch(""))
        self._join()

    def _join(self) -> None:
        about = {"instance_id": self.name, "ip": "10.0.0.1", "http_port": 1, "incarnation": "1"}
        self._client.ask(json_request("/instances", about))
        self._send_snapshot(L1)

    def step(self, salt: str) -> None:
        """As much is deleted as is stored."""
        try:
            self._step(salt)
        except RuntimeError as error:
            if not str(error).startswith("404"):
                raise
            self._join()  # this machine did nothing for so long that it was dropped

    def _step(self, salt: str) -> None:
        for source, batches, limit in ((L1, self._batches[L1], BATCHES), (SHARED, self._batches[SHARED], SALTS)):
            new = self._batch(salt if source == SHARED else "")
            batches.append(new)
            old = batches.popleft() if len(batches) > limit else None
            self._send_changes(source, new, old)

    def leave(self) -> None:
        self._client.ask(request("DELETE", f"/instances/{self.name}"))

    def _batch(self, salt: str) -> Batch:
        return Batch(salt, self._random.randbytes(BATCH * HASH_BYTES))

    def _send_changes(self, source: str, new: Batch, old: Batch | None) -> None:
        runs = [Run(Kind.STORE, 0, 1 << 20, new.hashes)]
        if old is not None:
            runs.append(Run(Kind.DELETE, 1, 1 << 20, old.hashes))
        first = self._next[source]
        self._next[source] += BATCH * len(runs)
        if self._random.random() < LOSES:
            return  # the message is lost
        spaces = (space(new.salt), space(old.salt if old else ""))
        page = JournalPage(spaces=spaces, first=first, runs=tuple(runs), **self._about(source))
        reply = msgspec.msgpack.decode(self._client.ask(request("POST", "/fleet/journal", encode(page))), type=Reply)
        behind = {source for source, awaited in reply.expects.items() if self._next.get(source, awaited) != awaited}
        for source in behind | {each.source for each in reply.commands if isinstance(each, FullSync)}:
            self._send_snapshot(source)

    def _send_snapshot(self, source: str) -> None:
        self._snapshots += 1
        batches = self._batches[source]
        salts = {salt: number for number, salt in enumerate(dict.fromkeys(each.salt for each in batches))}
        runs = tuple(Run(Kind.STORE, salts[each.salt], 1 << 20, each.hashes) for each in batches)
        page = SnapshotPage(
            spaces=tuple(space(salt) for salt in salts), runs=runs, snapshot=self._snapshots,
            begins_at=self._next[source], page=0, last=True, **self._about(source),
        )  # fmt: skip
        self._client.ask(request("POST", "/fleet/snapshot", encode(page)))

    def _about(self, source: str) -> dict[str, Any]:
        is_shared = source == SHARED
        return {
            "instance": self.name,
            "incarnation": "1",
            "source": source,
            "backend": "redis" if is_shared else "",
            "shared": is_shared,
        }


def name_spaces(client: Client) -> None:
    """So that the coordinator remembers as many models and salts as it ever does."""
    name, first = "early", 0
    client.ask(json_request("/instances", {"instance_id": name, "ip": "10.0.0.1", "http_port": 1, "incarnation": "1"}))
    while first < SPACES_MAX:
        spaces = tuple(space(f"early-{first + number}") for number in range(PAGE_SPACES_MAX))
        runs = tuple(Run(Kind.STORE, number, 1, bytes(HASH_BYTES)) for number in range(len(spaces)))
        page = JournalPage(instance=name, incarnation="1", source=L1, spaces=spaces, first=first, runs=runs)
        client.ask(request("POST", "/fleet/journal", encode(page)))
        first += len(spaces)
    client.ask(request("DELETE", f"/instances/{name}"))


class Others:
    """Operators, routers, posters, and who only tries."""

    def __init__(self, client: Client, random_: random.Random) -> None:
        self._client, self._random = client, random_
        self._number = 0
        self._quotas: deque[str] = deque()
        self._pins: deque[bytes] = deque()

    def post_once(self, posters: int) -> None:
        """So that the coordinator remembers as many as it ever does."""
        for number in range(posters):
            self._ask("POST", "/l2/events", {"instance_id": f"early-{number}", "seq": 1, "events": []})

    def step(self) -> None:
        self._number += 1
        name = f"s{self._number}"
        self._quotas.append(name)
        self._ask("PUT", f"/l2/quota/{name}", {"limit_gb": 1.5})
        if len(self._quotas) > SALTS:
            self._ask("DELETE", f"/l2/quota/{self._quotas.popleft()}")
        self._client.ask(by_hash(self._random.randbytes(QUERY_CHUNKS * HASH_BYTES)))
        self._ask("POST", "/query", {"model": f"model-{name}", "token_ids": [self._number] * 512})
        self._ask("GET", "/l2/status")
        self._ask("GET", f"/l2/status/{name}")
        key = {"chunk_hash_hex": self._random.randbytes(32).hex(), "model_name": f"model-{name}", "kv_rank": 0,
               "object_group_id": 0, "cache_salt": name}  # fmt: skip
        for seq, kind in enumerate(("store", "lookup", "delete"), 1):
            event = {"type": kind, "key": key, "bytes": 10}
            self._ask("POST", "/l2/events", {"instance_id": f"poster-{name}", "seq": seq, "events": [event]})
        pin = {"model_name": MODEL, "token_ids": [self._number] * 2 * CHUNK_TOKENS}
        self._ask("POST", "/cache/pins", pin)
        self._ask("DELETE", "/cache/pins", pin)
        self._ask("PUT", f"/instances/none-{name}/heartbeat", {})
        self._ask("GET", f"/dashboard/instances/none-{name}")
        self._ask("GET", "/metrics")
        self._ask("GET", f"/no/such/path/{name}")
        self._client.ask(request("POST", "/fleet/journal", self._random.randbytes(300)), refused=True)

    def _ask(self, method: str, path: str, body: object = None) -> None:
        data = b"" if body is None else msgspec.json.encode(body)
        self._client.ask(request(method, path, data, "application/json"), refused=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between steps")
    args = parser.parse_args()
    print(description())
    with tempfile.TemporaryDirectory() as folder, coordinator_with_token(Path(folder)) as coordinator:
        soak(coordinator, args.minutes * 60, args.members, args.pause)


def soak(coordinator: CoordinatorProcess, seconds: float, members: int, pause: float) -> None:
    assert coordinator.process is not None
    process, random_ = coordinator.process.pid, random.Random(1)
    client = Client(coordinator.port)
    shared = deque[Batch]()
    names = (f"m{number}" for number in itertools.count())
    others = Others(client, random_)
    others.post_once(INSTANCES_MAX)  # first: servers that are silent meanwhile are dropped
    name_spaces(client)
    alive = [Member(next(names), client, random_, shared) for _ in range(members)]
    samples: list[tuple[int, int]] = []
    start = sampled = time.monotonic()
    for step in itertools.count():
        now = time.monotonic()
        if now - start >= seconds:
            break
        alive[step % members].step(f"tenant-{step // 10}")
        others.step()
        if random_.random() < LEAVES:
            place = random_.randrange(members)
            alive[place].leave()
            alive[place] = Member(next(names), client, random_, shared)
        if now - sampled >= seconds / 120:
            sampled = now
            samples.append((client.statuses.total(), anonymous_bytes(process)))
        # At a fixed rate: what is remembered for a time is as much as comes in that time.
        time.sleep(max(0.0, start + (step + 1) * pause - time.monotonic()))
    late = samples[int(len(samples) * WARM_UP) :]
    slope = trend([requests / 1000 for requests, _ in late], [float(held) for _, held in late])
    print(
        f"{client.statuses.total():,} requests, {dict(sorted(client.statuses.items()))}, {next(names)[1:]} members came"
    )
    print(
        "MiB of anonymous memory: "
        + " ".join(f"{held / 2**20:.1f}" for _, held in samples[:: max(1, len(samples) // 24)])
    )
    if slope is not None:
        print(
            f"bytes per 1,000 requests after {WARM_UP:.0%} of the time: {slope.slope:,.0f} ({slope.low:,.0f} to "
            f"{slope.high:,.0f}): {slope.verdict(TOLERANCE)} (tolerance {TOLERANCE:,.0f})"
        )


if __name__ == "__main__":
    main()
