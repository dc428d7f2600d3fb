"""What engines ask about the server itself."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_digest

from lmcache_client.errors import ProtocolError
from lmcache_client.messages import BlockAllocation, ClientHello, ServerHello
from lmcache_client.operations import (
    CLEAR,
    GET_CHUNK_SIZE,
    GET_EXPERIMENTAL,
    HELLO,
    NOOP,
    PING,
    REPORT_BLOCK_ALLOCATION,
)
from lmcache_core import __version__
from lmcache_core.contracts.events import BlocksAllocated
from lmcache_core.contracts.operation import Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.server.request_fields import check_request_id


class ManagementModule(RequestModule):
    """Answered on the router's thread, so that no transfer can make an engine believe that the server is gone."""

    def __init__(self, context: ModuleContext) -> None:
        self._context = context

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(GET_CHUNK_SIZE, self.chunk_size, HandlerMode.INLINE),
            Handler(GET_EXPERIMENTAL, self.experimental, HandlerMode.INLINE),
            Handler(HELLO, self.hello, HandlerMode.INLINE),
            Handler(PING, self.ping, HandlerMode.INLINE, may_be_refused=False),
            Handler(NOOP, self.noop, HandlerMode.INLINE),
            Handler(REPORT_BLOCK_ALLOCATION, self.block_allocation, HandlerMode.ORDERED),
            Handler(CLEAR, self.clear, HandlerMode.POOLED),
        ]

    def chunk_size(self, call: Call) -> int:
        return self._context.chunk_tokens

    def experimental(self, call: Call) -> list[str]:
        return list(self._context.features())

    def hello(self, call: Call, asks: ClientHello) -> ServerHello:
        """Which server this is, in one question: clients learn from another boot id that it was started again."""
        context = self._context
        return ServerHello(
            boot_id=context.boot_id,
            instance_id=context.instance_id,
            version=__version__,
            chunk_tokens=context.chunk_tokens,
            segment=context.segment or "",
            l1_bytes=context.l1_bytes,
            operations=tuple(context.operations()),
            worker_timeout_seconds=context.worker_timeout_seconds,
        )

    def ping(self, call: Call, instance_id: int | None) -> bool:
        """A scheduler's ping keeps its queued lookups held; a worker's says that it is alive."""
        if instance_id is None:
            self._context.storage.renew_lookups(call.connection)
            return True
        return self._context.workers.seen(instance_id, pinged=True, connection=call.connection)

    def noop(self, call: Call) -> str:
        return "OK"

    def block_allocation(self, call: Call, pid: int, model_name: str, records: list[BlockAllocation]) -> None:
        """Telemetry of the engine's own cache, for subscribers that want it."""
        if not self._context.events.wants(BlocksAllocated):
            return
        for record in records:
            if record.new_block_ids:
                self._context.events.publish(_blocks_allocated(pid, model_name, record))

    def clear(self, call: Call, force: bool) -> None:
        self._context.storage.clear(force)


def _blocks_allocated(process_id: int, model_name: str, record: BlockAllocation) -> BlocksAllocated:
    """Raises ProtocolError for numbers that no engine has."""
    check_request_id(record.req_id)
    try:
        blocks, tokens = array("q", record.new_block_ids), array("q", record.new_token_ids)
    except OverflowError:
        raise ProtocolError("block ids and token ids fit 64 bits") from None
    size = -(-len(tokens) // len(blocks))  # the last block may not be full yet
    slices = (tokens[at * size : (at + 1) * size].tobytes() for at in range(len(blocks)))
    hashes = b"".join(xxh3_64_digest(of_block) for of_block in slices)
    return BlocksAllocated(
        process_id=process_id,
        model_name=model_name,
        request_id=record.req_id,
        block_ids=blocks.tobytes(),
        content_hashes=hashes,
    )


def open_management(settings: PluginSettings | None, context: ModuleContext) -> ManagementModule:
    return ManagementModule(context)
