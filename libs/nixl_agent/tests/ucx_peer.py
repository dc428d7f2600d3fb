"""A process with a UCX agent, which does what its standard input says: `python ucx_peer.py NAME ADDRESS`.

Each command is a line of JSON, and so is its answer; what an agent raises is answered as `{"error": ...}`."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from typing import Any

from lmcache_nixl_agent.agent import Extent, NixlAgent, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_nixl_agent.ucx import open_ucx_agent

WAIT_SECONDS = 60.0


class Peer:
    def __init__(self, name: str, address: str) -> None:
        log = logging.getLogger("lmcache.nixl.tests")
        self.thread = TransferThread(name, log, lambda: open_ucx_agent(name, address))
        self.memories: list[OwnMemory] = []

    def register(self, length: int, seed: int) -> dict[str, Any]:
        """More memory; its address, and what a peer has to know."""
        memory = OwnMemory(length)
        memory[0:length] = pattern(length, seed)
        self.thread.call(memory.register).result(WAIT_SECONDS)
        self.memories.append(memory)
        return {"address": memory.address, "metadata": self.thread.call(NixlAgent.metadata).result(WAIT_SECONDS).hex()}

    def connect(self, metadata: str) -> dict[str, Any]:
        return {"peer": self.thread.call(lambda agent: agent.add_peer(bytes.fromhex(metadata))).result(WAIT_SECONDS)}

    def disconnect(self, peer: str) -> dict[str, Any]:
        self.thread.call(lambda agent: agent.remove_peer(peer)).result(WAIT_SECONDS)
        return {}

    def read(self, peer: str, at: int, length: int, each: int) -> dict[str, Any]:
        """In pieces that are all asked for at once, into the memory that was registered first."""
        memory = self.memories[0]
        began = time.perf_counter()
        pieces = [
            Transfer(False, memory.extent(start, each), Segment.MEMORY, Extent(at + start, each), peer=peer)
            for start in range(0, length, each)
        ]
        for reading in [self.thread.submit(piece) for piece in pieces]:
            reading.result(WAIT_SECONDS)
        seconds = time.perf_counter() - began
        return {"sha256": hashlib.sha256(memory[0:length]).hexdigest(), "seconds": seconds}

    def close(self) -> dict[str, Any]:
        for memory in self.memories:
            self.thread.call(memory.deregister).result(WAIT_SECONDS)
        return {"closed": self.thread.close(WAIT_SECONDS), **self.thread.counters()}


def pattern(length: int, seed: int) -> bytes:
    return hashlib.shake_128(seed.to_bytes(8, "little")).digest(length)


def main() -> None:
    peer = Peer(*sys.argv[1:])
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = getattr(peer, command)(**arguments)
        except OSError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
