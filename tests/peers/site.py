"""A coordinator and servers that read out of each other's memory, each with an engine that has no model."""

from __future__ import annotations

import json
import mmap
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from demo.server_process import ServerProcess
from lmcache_core import HEADER_BYTES, ObjectKey, parse_canonical
from lmcache_core.model.object_header import MAGIC
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import SHM_ROOT, FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

CHUNK_TOKENS: Final = 16
SECONDS: Final = 60.0


def until(good: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What `good` returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := good()):
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)
    return found


def prompt(number: int, chunks: int) -> list[int]:
    return [number * 1000 + token for token in range(chunks * CHUNK_TOKENS)]


class PeerServer:
    """One server of the fleet, and its engine."""

    def __init__(
        self,
        name: str,
        coordinator: str,
        folder: Path,
        *options: str,
        peer_port: int | None = None,
        address: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`peer_port`: what it advertises, where a proxy has it.  `address`: by which the coordinator knows its machine.
        `environment`: further variables."""
        self.name = name
        self.peer_port = peer_port or free_port()
        self.segment_name = f"peers-{free_port()}-{name}"
        self.process = ServerProcess(
            [
                *("--instance-id", name, "--l1-size-gb", "0.05", "--chunk-size", str(CHUNK_TOKENS)),
                *("--coordinator-url", coordinator, "--coordinator-heartbeat-interval", "0.5"),
                *("--coordinator-advertise-ip", address),
                *("--coordinator-l2-event-flush-interval", "0.1"),
                *("--p2p-advertise-url", f"tcp://127.0.0.1:{self.peer_port}"),
                *("--shm-name", self.segment_name),
                *options,
            ],
            folder / f"{name}.log",
            environment=environment,
        )

    def start(self) -> None:
        self.process.start()

    def engine(self, **fields: Any) -> FakeEngine:
        return FakeEngine(f"tcp://127.0.0.1:{self.process.port}", **fields)

    def keys(self) -> list[ObjectKey]:
        """Of everything in L1."""
        url = f"http://127.0.0.1:{self.process.http_port}/cache/objects?tier=l1&page_size=1000"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return [parse_canonical(bytes.fromhex(each["key"])) for each in json.load(answer)["entries"]]

    def status(self) -> dict[str, Any]:
        """What the service says of itself."""
        status: dict[str, Any] = self.process.status()["services"]["p2p"]
        return status

    def flip(self, content: bytes) -> None:
        """Change one byte of this payload, where it lies in L1."""
        with self.segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as segment:
            at = segment.find(content)
            assert at >= HEADER_BYTES, "it is in this server's memory"
            segment[at + len(content) // 2] ^= 0x10

    def flip_everything(self) -> int:
        """Change one byte behind every sealed header page in L1.  Returns how many there are."""
        with self.segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as segment:
            pages = [at for at in range(0, len(segment), HEADER_BYTES) if segment[at : at + len(MAGIC)] == MAGIC]
            for at in pages:
                segment[at + HEADER_BYTES + 100] ^= 0x10
        return len(pages)

    @property
    def segment(self) -> Path:
        (path,) = SHM_ROOT.glob(f"*{self.segment_name}*")
        return path


class Fleet:
    """`with Fleet(folder, 2) as fleet:`"""

    def __init__(self, folder: Path, servers: int, *options: str) -> None:
        self.coordinator = CoordinatorProcess(folder, "--instance-timeout", "5", "--health-check-interval", "0.5")
        self.servers = [
            PeerServer(f"s{number}", self.coordinator.url, folder, *options, address=f"127.0.0.{1 + number}")
            for number in range(servers)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.coordinator)
            for server in self.servers:
                stack.enter_context(server.process)
            until(lambda: self.members() == len(self.servers))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def members(self) -> int:
        """That are registered, and known to every server."""
        registered = len(self.coordinator.ask("GET", "/instances").body["instances"])
        members: int = min([registered, *(server.status()["members"] for server in self.servers)])
        return members

    def known(self, name: str) -> int:
        """Keys that the directory says this server has in L1."""
        rows = self.coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
        return sum(row["keys"] for row in rows if (row["instance_id"], row["source"]) == (name, "l1"))

    def store(self, engine: FakeEngine, server: PeerServer, prompts: Sequence[Sequence[int]]) -> None:
        """Store these at a server, until the directory knows."""
        before = self.known(server.name)
        for number, tokens in enumerate(prompts):
            assert engine.store(tokens, f"store-{number}")
            engine.end(f"store-{number}")
        chunks = sum(len(tokens) // CHUNK_TOKENS for tokens in prompts)
        until(lambda: self.known(server.name) >= before + chunks)
