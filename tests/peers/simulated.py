"""Members of a fleet whose journals say that they have something, and who have nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from lmcache_client.codec import OperationTable, encode_result
from lmcache_core import HashChain, ObjectKey
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_fleet.families import Family, vector_of
from lmcache_fleet.messages import JournalPage, Kind, Run, encode
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.messages import HELLO, LOOKUP_AND_LOCK, OPERATIONS, QUERY_LOOKUP_RESULTS, Hello, PeerAddress
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.p2p.tests.rig import HOST, tcp


class SimulatedPeers:
    """`with SimulatedPeers(coordinator, 60) as peers:` registers them.  One thread answers for all.  They do not say that they
    live: the coordinator waits for them as long as its `--instance-timeout` is."""

    def __init__(self, coordinator: CoordinatorProcess, count: int) -> None:
        self.lookups: Counter[str] = Counter()
        """By name."""
        self._coordinator = coordinator
        self._names = [f"simulated-{number}" for number in range(count)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._bound = threading.Event()
        self._urls: dict[str, PeerUrl] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(20)
        for name in self._names:
            said = {"instance_id": name, "incarnation": "1", "p2p_advertised_url": str(self._urls[name])}
            assert self._coordinator.ask("POST", "/instances", said).status == 200
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(20)

    def claim(self, keys: Sequence[ObjectKey]) -> None:
        """The directory says from now on that each of them has one of these, in turns.  Once."""
        for number, name in enumerate(self._names):
            key = keys[number % len(keys)]
            page = JournalPage(
                instance=name,
                incarnation="1",
                source="l1",
                spaces=(key.space.tail,),
                runs=(Run(Kind.STORE, 0, 1, key.chunk_hash),),
                first=0,
            )
            headers = {"Content-Type": "application/msgpack"}
            assert self._coordinator.ask("POST", "/fleet/journal", encode(page), headers).status == 200

    def _run(self) -> None:
        poller, table = zmq.Poller(), OperationTable(OPERATIONS)
        names: dict[Any, str] = {}
        with ExitStack() as stack:
            channel = tcp(BorrowedMemory(1 << 20), "simulated")
            stack.callback(channel.close, 1.0)
            description = channel.describe()
            for name in self._names:
                keys, router = KeyPair.new(), self._context.socket(zmq.ROUTER)
                router.linger = 0
                router.curve_server = True
                router.curve_secretkey, router.curve_publickey = keys.secret, keys.public
                port = router.bind_to_random_port(f"tcp://{HOST}")
                self._urls[name] = PeerUrl(f"tcp://{HOST}:{port}", keys.public)
                names[router] = name
                poller.register(router, zmq.POLLIN)
            self._bound.set()
            while not self._stopping.is_set():
                for router, _ in poller.poll(50):
                    identity, number, operation, *payload = router.recv_multipart()
                    codec = table.find(operation)
                    result = self._answer(
                        names[router], codec.operation.name, codec.decode_payload(payload), description
                    )
                    router.send_multipart([identity, number, operation, *encode_result(result)])
        for router in names:
            router.close()
        self._context.term()

    def _answer(self, name: str, operation: str, arguments: Sequence[Any], description: bytes) -> Any:
        match operation:
            case HELLO.name:
                says: Hello = arguments[0]
                family = Family(says.chunk_tokens, HashChain.named(says.chain))
                said = {"boot_id": name, "test_vector": vector_of(family), "channels": {"tcp": description}}
                return msgspec.structs.replace(says, instance=name, secret=b"s" * 32, **said)
            case LOOKUP_AND_LOCK.name:
                self.lookups[name] += 1
                return len(arguments[0])
            case QUERY_LOOKUP_RESULTS.name:
                return [PeerAddress(-1, 0)] * arguments[0]
            case _:
                return None
