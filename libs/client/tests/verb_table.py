"""Every typed method of the clients, with arguments and a result."""

from __future__ import annotations

from libs.client.tests.scripted_server import Frames, ScriptedServer
from lmcache_client import operations as ops
from lmcache_client.codec import OperationTable, encode_result
from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.messages import (
    BlockAllocation,
    EngineDrivenRegistration,
    LayoutPart,
    PrepareRetrieveReply,
    PrepareStoreReply,
    ServerHello,
    SharedMemoryOffer,
    StoreContext,
    WorkerRegistration,
)

KEY = EngineKey("m", 1, None, encode_tokens(range(64)), 0, 64, "r1")
REGISTRATION = EngineDrivenRegistration(7, "m", 1, 16, 2, 64, "bfloat16", True, 64)
WORKER = WorkerRegistration(7, "m", 1, 0, (LayoutPart(1, 2, 16, 64, "bfloat16"),))

VERBS: list[tuple[str, tuple[object, ...], object]] = [
    ("hello", (), ServerHello("boot", "instance", "0.1", 256, "segment", 4096, ("ping",))),
    ("get_chunk_size", (), 256),
    ("get_experimental", (), ["transfer_query"]),
    ("ping", (), True),
    ("ping", (7,), False),
    ("noop", (), "OK"),
    ("clear", (), None),
    ("lookup", (KEY,), None),
    ("query_prefetch_status", ("r1",), None),
    ("query_prefetch_status", ("r1",), 4),
    ("query_prefetch_lookup_hits", ("r1",), 4),
    ("wait_prefetch_status", ("r1", 1), 4),
    ("lookup_hits", (KEY,), 4),
    ("free_lookup_locks", (KEY,), None),
    ("end_session", ("r1",), None),
    ("report_block_allocation", (1, "m", (BlockAllocation("r", [1], [2]),)), None),
    ("register_engine_driven", (REGISTRATION,), SharedMemoryOffer("pool", 4096)),
    ("register_worker", (WORKER,), SharedMemoryOffer("pool", 4096)),
    ("unregister_engine_driven", (7,), None),
    ("prepare_store", (KEY, 7), PrepareStoreReply(StoreContext((), ()))),
    ("commit_store", (KEY, 7), True),
    ("commit_store", (KEY, 7, b"data"), False),
    ("abandon_store", (KEY, 7), True),
    ("prepare_retrieve", (KEY, 7), PrepareRetrieveReply(True, b"data")),
    ("commit_retrieve", (KEY, 7), True),
]


def answer_all(server: ScriptedServer, result: object) -> None:
    """Answer every request that can be read with this result."""
    table = OperationTable(ops.OPERATIONS)

    def answer(request: Frames) -> list[Frames]:
        table.find(request[2]).decode_payload(request[3:])
        return [[*request[:3], *map(bytes, encode_result(result))]]

    server.answer = answer
