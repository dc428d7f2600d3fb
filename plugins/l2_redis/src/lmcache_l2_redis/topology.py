"""Which server has which object: one server, the master that sentinels name, or the nodes of a cluster."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from lmcache_core import ProtocolError
from lmcache_l2_redis.address import PORT_MAX, Address
from lmcache_l2_redis.connection import Dialer
from lmcache_l2_redis.errors import DeniedError, RedirectedError, ReplyError
from lmcache_l2_redis.node import Node
from lmcache_l2_redis.replies import Reply, command

SLOTS: Final = 16_384
NewNode = Callable[[Address], Node]


def slot_of(name: bytes) -> int:
    """The slot of a cluster that a name belongs to: of its first part in braces that is not empty, where it has one."""
    begin = name.find(b"{")
    end = name.find(b"}", begin + 1) if begin >= 0 else -1
    return crc_hqx(name[begin + 1 : end] if end > begin + 1 else name, 0) % SLOTS


class Topology(ABC):
    """Belongs to one event loop."""

    def __init__(self, new_node: NewNode) -> None:
        self._new_node: Final = new_node
        self._nodes: dict[Address, Node] = {}
        self._learning: asyncio.Task[None] | None = None

    async def learn(self) -> None:
        """Ask who has what.  Who calls it while another does waits for what that one finds; it goes on when they are
        cancelled, since it may take longer than an operation.  Raises OSError, ProtocolError or ReplyError where no node can
        say."""
        if self._learning is None:
            self._learning = asyncio.create_task(self._learn())
            self._learning.add_done_callback(self._learned)
        await asyncio.shield(self._learning)

    async def redirected(self, to: RedirectedError) -> Node:
        """Who is to be asked now."""
        raise ProtocolError(f"it is a node of a cluster ('{to}'): name it in 'nodes'")

    @abstractmethod
    def node_of(self, name: bytes) -> Node:
        """Who has this name, as far as is known."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All that have objects, always in the same order where nothing has changed."""
        return [self._nodes[address] for address in sorted(self._nodes)]

    def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()

    @abstractmethod
    async def _learn(self) -> None: ...

    def _learned(self, learning: asyncio.Task[None]) -> None:
        self._learning = None
        if not learning.cancelled():
            learning.exception()  # a waiter has raised it, if there was one

    def _keep(self, addresses: Sequence[Address]) -> None:
        """Have a node for each of these, and for no other."""
        for gone in self._nodes.keys() - set(addresses):
            self._nodes.pop(gone).close()
        for address in addresses:
            self._node_at(address)

    def _node_at(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = self._new_node(address)
        return self._nodes[address]


class SingleServer(Topology):
    def __init__(self, new_node: NewNode, address: Address) -> None:
        super().__init__(new_node)
        self._only: Final = self._node_at(address)

    def node_of(self, name: bytes) -> Node:
        return self._only

    async def _learn(self) -> None:
        """There is nothing to learn."""


class SentinelMaster(Topology):
    """The server that sentinels call the master: the first one that answers is believed."""

    def __init__(self, new_node: NewNode, sentinels: Sequence[Address], name: str, dialer: Dialer) -> None:
        super().__init__(new_node)
        self._sentinels = tuple(sentinels)
        self._name: Final = name
        self._dialer: Final = dialer
        self._master: Node | None = None

    def node_of(self, name: bytes) -> Node:
        if self._master is None:
            raise ConnectionError(f"no sentinel has named the master '{self._name}' yet")
        return self._master

    async def _learn(self) -> None:
        faults = []
        for sentinel in self._sentinels:
            try:
                master = await self._ask(sentinel)
            except (OSError, ReplyError, ProtocolError) as error:
                faults.append(str(error))
                continue
            if master is None:
                faults.append(f"{sentinel} knows no master '{self._name}' (master_name)")
                continue
            # The node that answered is asked first the next time.
            self._sentinels = (sentinel, *(each for each in self._sentinels if each != sentinel))
            self._keep([master])
            self._master = self._node_at(master)
            return
        raise ConnectionError("; ".join(faults))

    async def _ask(self, sentinel: Address) -> Address | None:
        connection = await self._dialer.connect(sentinel)
        try:
            async with _patience(sentinel, self._dialer.connect_timeout_seconds):
                reply = await connection.ask_one(command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name))
        finally:
            connection.close()
        return None if reply is None else _address(reply, sentinel)


class Cluster(Topology):
    def __init__(self, new_node: NewNode, seeds: Sequence[Address], patience_seconds: float) -> None:
        """`patience_seconds`: for which a node is waited that is to say who has what, before another is asked."""
        super().__init__(new_node)
        self._patience_seconds: Final = patience_seconds
        self._seeds: Final = tuple(seeds)
        self._slots: list[Node | None] = [None] * SLOTS

    def node_of(self, name: bytes) -> Node:
        slot = slot_of(name)
        node = self._slots[slot]
        if node is None:
            raise ConnectionError(f"no node of the cluster has slot {slot} at the moment")
        return node

    async def redirected(self, to: RedirectedError) -> Node:
        node = self._node_at(to.address)
        if not to.asks_once:
            self._slots[to.slot % SLOTS] = node
        return node

    async def _learn(self) -> None:
        faults = []
        known = [node.address for node in self.nodes]
        for address in dict.fromkeys([*known, *self._seeds]):
            is_known = address in self._nodes
            node = self._nodes[address] if is_known else self._new_node(address)
            try:
                async with _patience(address, self._patience_seconds):
                    (reply,) = await node.ask(command("CLUSTER", "SLOTS"))
                ranges = _ranges(reply, address)
            except DeniedError:
                raise
            except (OSError, ReplyError, ProtocolError) as error:
                faults.append(str(error))
                continue
            finally:
                if not is_known:
                    node.close()
            if not ranges:
                faults.append(f"{address} has no slots: its cluster was not set up")
                continue
            self._take(ranges)
            return
        raise ConnectionError("; ".join(faults))

    def _take(self, ranges: Sequence[tuple[int, int, Address]]) -> None:
        self._keep([address for _, _, address in ranges])
        slots: list[Node | None] = [None] * SLOTS
        for first, last, address in ranges:
            slots[first : last + 1] = [self._nodes[address]] * (last + 1 - first)
        self._slots = slots


@asynccontextmanager
async def _patience(asked: Address, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ConnectionError(f"{asked} does not say within {seconds:g} s who has what") from None


def _ranges(reply: Reply, asked: Address) -> list[tuple[int, int, Address]]:
    if not isinstance(reply, list):
        raise ReplyError(f"{asked} is not a node of a cluster ({getattr(reply, 'text', reply)}); name it in 'host'")
    ranges = []
    for part in reply:
        match part:
            case [int(first), int(last), [*place], *_] if 0 <= first <= last < SLOTS:
                ranges.append((first, last, _address(place[:2], asked)))
            case _:
                raise ProtocolError(f"{asked}: its slots cannot be read")
    return ranges


def _address(reply: Reply, asked: Address) -> Address:
    """A node that does not know its own name says nothing for it: it is the one that was asked."""
    match reply:
        case [bytes() | None as host, bytes() | int() as number, *_]:
            try:
                port = int(number)
            except ValueError:
                port = 0
            if 1 <= port <= PORT_MAX:
                return Address((host or b"").decode(errors="replace") or asked.host, port)
    raise ProtocolError(f"{asked} names a server that cannot be read")
