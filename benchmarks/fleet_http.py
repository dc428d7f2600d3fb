"""A coordinator over HTTP, with tokens: how many placements it takes, what members cost, and how long answers take.

.venv/bin/python -m benchmarks.fleet_http [--members 10] [--keys 1000000] [--idle 1000]

One coordinator, one process of load on the same machine; the pages are made before the clock starts."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.machine import description
from benchmarks.startup import cpu_seconds
from lmcache_core import HashChain, KeySpace
from lmcache_fleet.messages import HASH_BYTES, PAGE_KEYS_MAX, JournalPage, Kind, Run, SnapshotPage, encode
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

MODEL: Final = "model"
CHUNK_TOKENS: Final = 256
SPACE: Final = KeySpace(MODEL, 0x01000100, 0, "", CHUNK_TOKENS, HashChain.BLAKE3, bytes(16)).tail
TOKEN: Final = "benchmark-token"
SPAWN: Final = multiprocessing.get_context("spawn")
QUERY_CHUNKS: Final = 512
ANSWERS: Final = 300


class Client:
    """Requests on one connection that is kept, with nothing between the socket and the clock."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.statuses: Counter[int] = Counter()
        """Of its answers."""
        self._rest = b""

    def ask(self, request: bytes, *, refused: bool = False) -> bytes:
        """`refused`: any status will do."""
        self.socket.sendall(request)
        return self.answer(refused=refused)

    def answer(self, *, refused: bool = False) -> bytes:
        data = self._rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = data[:end].lower()
        length = int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]) if b"content-length: " in head else 0
        body = data[end + 4 :]
        while len(body) < length:
            body += self._receive()
        self._rest = body[length:]
        status = int(head.split(b" ", 2)[1])
        self.statuses[status] += 1
        if not (refused or 200 <= status < 300):
            raise RuntimeError(f"{status}: {body[:200]!r}")
        return body[:length]

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the coordinator has hung up")
        return data


def request(method: str, path: str, body: bytes = b"", media_type: str = "application/msgpack") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def json_request(path: str, body: object) -> bytes:
    return request("POST", path, msgspec.json.encode(body), "application/json")


def registration(member: int) -> bytes:
    return json_request(
        "/instances", {"instance_id": f"m{member}", "ip": "10.0.0.1", "http_port": 1, "incarnation": "1"}
    )


def snapshot(member: int, hashes: bytes) -> Iterator[bytes]:
    page_bytes = PAGE_KEYS_MAX * HASH_BYTES
    cuts = range(0, len(hashes), page_bytes)
    for number, at in enumerate(cuts):
        runs = (Run(Kind.STORE, 0, 1 << 20, hashes[at : at + page_bytes]),)
        page = SnapshotPage(
            instance=f"m{member}", incarnation="1", source="l1", spaces=(SPACE,), runs=runs, snapshot=1, begins_at=0,
            page=number, last=at == cuts[-1],
        )  # fmt: skip
        yield request("POST", "/fleet/snapshot", encode(page))


def changes(member: int, first: int, keys: int) -> bytes:
    page = JournalPage(
        instance=f"m{member}", incarnation="1", source="l1", spaces=(SPACE,), first=first,
        runs=(Run(Kind.STORE, 0, 1 << 20, os.urandom(keys * HASH_BYTES)),),
    )  # fmt: skip
    return request("POST", "/fleet/journal", encode(page))


def full_sync(port: int, process: int, members: int, keys: int) -> Sequence[bytes]:
    """All members send everything at the same time.  Returns the keys of each."""
    everything = [os.urandom(keys * HASH_BYTES) for _ in range(members)]
    pages = [list(snapshot(member, hashes)) for member, hashes in enumerate(everything)]
    clients = [Client(port) for _ in range(members)]
    for member, client in enumerate(clients):
        client.ask(registration(member))

    def send(member: int) -> None:
        for page in pages[member]:
            clients[member].ask(page)

    cpu, start = cpu_seconds(process), time.monotonic()
    threads = [threading.Thread(target=send, args=(member,)) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu = time.monotonic() - start, cpu_seconds(process) - cpu
    total = members * keys
    rate = total / seconds / 1e6
    print(f"full sync of {members} x {keys:,} keys: {seconds:.2f} s, {rate:.2f}M placements/s, {cpu:.2f} s of CPU")
    return everything


def latency(name: str, port: int, make: Callable[[], bytes], pause: float = 0.005) -> None:
    client, took = Client(port), []
    client.ask(make())
    for _ in range(ANSWERS):
        asked = make()
        start = time.perf_counter()
        client.ask(asked)
        took.append((time.perf_counter() - start) * 1e3)
        time.sleep(pause)
    took.sort()
    print(f"{name}: p50 {statistics.median(took):.2f} ms, p99 {took[int(len(took) * 0.99)]:.2f} ms")


def ask_now_and_then(port: int, seconds: float, answers: Any) -> None:
    """Body of a process of its own, so that the load does not delay it."""
    client, took = Client(port), list[float]()
    asked = json_request("/query", {"model": MODEL, "token_ids": list(range(32 * CHUNK_TOKENS))})
    answers.put(None)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        start = time.perf_counter()
        client.ask(asked)
        took.append((time.perf_counter() - start) * 1e3)
    answers.put(sorted(took))


def crowd(port: int, process: int, members: int, seconds: float, interval: float, keys: int) -> None:
    """This number of members, each on its connection; one request of each per interval: a heartbeat, or a page of keys."""
    clients = [Client(port) for _ in range(members)]
    for member, client in enumerate(clients):
        client.ask(registration(member))
    nexts = [0] * members
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
    prepared: list[list[bytes]] = [[] for _ in range(members)]
    rounds = int(seconds / interval) + 1
    for member in range(members):
        for _ in range(rounds if keys else 0):
            prepared[member].append(changes(member, nexts[member], keys))
            nexts[member] += keys
    beats = [request("POST", f"/fleet/heartbeat/m{member}") for member in range(members)]
    asked = SPAWN.Queue()
    asker = SPAWN.Process(target=ask_now_and_then, args=(port, seconds, asked))
    asker.start()
    asked.get()
    cpu, start, sent, answered = cpu_seconds(process), time.monotonic(), 0, 0
    while (now := time.monotonic() - start) < seconds:
        due = int(now / interval * members)
        while sent < due:
            member, round_ = sent % members, sent // members
            clients[member].socket.sendall(prepared[member][round_] if keys else beats[member])
            sent += 1
        for key, _ in selector.select(0.002):
            key.data.answer()
            answered += 1
    while answered < sent:
        for key, _ in selector.select(1.0):
            key.data.answer()
            answered += 1
    wall, cpu = time.monotonic() - start, cpu_seconds(process) - cpu
    took = asked.get()
    asker.join()
    print(
        f"{members} members, {sent / wall:.0f} requests/s with {sent * keys / wall:,.0f} changes/s: {cpu / wall:.2f} cores; "
        f"/query beside it: p50 {statistics.median(took):.2f} ms, p99 {took[int(len(took) * 0.99)]:.2f} ms"
    )


def coordinator_with_token(folder: Path) -> CoordinatorProcess:
    """Not started yet.  It refuses requests without TOKEN."""
    tokens = folder / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return CoordinatorProcess(folder, "--token-file", str(tokens), headers=headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--idle", type=int, default=1000, help="members that send heartbeats, and then changes")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    print(description())
    with tempfile.TemporaryDirectory() as folder, coordinator_with_token(Path(folder)) as coordinator:
        assert coordinator.process is not None
        process = coordinator.process.pid
        everything = full_sync(coordinator.port, process, args.members, args.keys)
        some = random.Random(1)

        def keys() -> bytes:
            mine = everything[some.randrange(args.members)]
            at = some.randrange(max(1, args.keys - QUERY_CHUNKS)) * HASH_BYTES
            return mine[at : at + QUERY_CHUNKS * HASH_BYTES]

        latency(f"/fleet/lookup of {QUERY_CHUNKS} keys", coordinator.port, lambda: lookup(keys()))
        latency(f"/query_by_hash of {QUERY_CHUNKS} chunks", coordinator.port, lambda: by_hash(keys()))
        crowd(coordinator.port, process, args.idle, args.seconds, 5.0, 0)
        crowd(coordinator.port, process, args.idle, args.seconds, 1.0, 100)


def lookup(hashes: bytes) -> bytes:
    return request("POST", "/fleet/lookup", msgspec.msgpack.encode({"parts": [[SPACE, hashes]]}))


def by_hash(hashes: bytes) -> bytes:
    chunks = [hashes[at : at + HASH_BYTES].hex() for at in range(0, len(hashes), HASH_BYTES)]
    return json_request("/query_by_hash", {"model": MODEL, "block_size": CHUNK_TOKENS, "seq_hashes": chunks})


if __name__ == "__main__":
    main()
