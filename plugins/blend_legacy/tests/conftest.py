"""A server that serves documents, in the process of the tests, and raw clients whose buffer is shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from lmcache_blend_legacy.messages import LOOKUP, REGISTER, RETRIEVE, STORE_PRE_COMPUTED, UNREGISTER
from lmcache_client import EngineKey, Operation
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.transfer_torch.tests.driven_engine import Segment, extension

SIZE, LAYERS, ROWS, HEADS, HEAD = 16, 2, 200, 2, 8
SEPARATOR = [7, 8]
FIRST = list(range(1000, 1000 + 2 * SIZE + 5))
SECOND = list(range(2000, 2000 + SIZE))
SHORT = [3000, 3001, 3002]
EVENT = b"stub_ipc_handle"
NO = (b"", False)
GARBAGE = 12345.0


def started(plugins: Sequence[str] = ("blend_legacy", "transfer_torch"), **more: Any) -> Server:
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": free_port(),
        "chunk_size": SIZE,
        "l1_size_gb": 0.0625,
        "disable_logging": True,
        "engine_type": ("blend_legacy",),
        "offer_settings": {"request_module:blend_legacy": {"special_tokens": SEPARATOR}},
    }
    server = build(ServerSettings(**{**given, **more}), load_plugins(list(plugins)))
    server.start()
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Each client leaves it empty."""
    server = started()
    yield server
    server.stop(0.0)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client


class Client:
    """A scheduler and a worker whose buffer has a row of K and of V for each token."""

    def __init__(self, server: Server, shape: Sequence[int] = (2, ROWS, HEADS, HEAD), **options: Any) -> None:
        self.options = {"model": "model", "world_size": 1, "worker_id": 0, "salt": "", **options}
        self.fake = FakeEngine(server.info.engine_endpoint, **self.options)
        self.instance_id, self.shape = self.fake.instance_id, list(shape)
        self.segments = [Segment(2 * ROWS * HEADS * HEAD * 4) for _ in range(LAYERS)]
        self.rows: list[NDArray[np.float32]] = [
            each.bytes.view(np.float32).reshape(2, ROWS, HEADS * HEAD) for each in self.segments
        ]
        self.wipe()

    def __enter__(self) -> Client:
        self.register()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.ask(UNREGISTER, self.instance_id)
        self.fake.end()
        self.fake.scheduler.clear(True)
        self.fake.close()
        for segment in self.segments:
            segment.close()

    def ask(self, operation: Operation, *payload: Any) -> Any:
        return self.fake.worker.call(operation, *payload)

    def tensors(self, shape: Sequence[int] | None = None, **changes: Any) -> list[msgspec.msgpack.Ext]:
        shape = shape or self.shape
        stride = [int(np.prod(shape[at + 1 :])) for at in range(len(shape))]
        metadata: dict[str, Any] = {"dtype": "float32", "shape": shape, "stride": stride, "storage_offset": 0}
        metadata |= {"device_uuid": "cpu"} | changes
        return [
            extension({
                "type": "cpu_shm", "shm_name": each.name, "nbytes": each.size, "version": 1, "metadata": metadata
            })
            for each in self.segments
        ]  # fmt: skip

    def register(self, **changes: Any) -> None:
        payload: dict[str, Any] = {"instance_id": self.instance_id, "tensors": self.tensors()}
        payload |= {"model": self.options["model"], "world_size": self.options["world_size"]} | changes
        assert self.ask(REGISTER, *payload.values()) is None

    def wipe(self) -> None:
        for rows in self.rows:
            rows[:] = GARBAGE

    def right(self, layer: int, document: Sequence[int]) -> NDArray[np.float32]:
        """`[K and V][token]` of a document that was computed for itself: it depends on the tokens before."""
        seeds = [sum(document[: at + 1]) for at in range(len(document))]
        rows = [np.random.default_rng([self.options["worker_id"], layer, seed]).normal(size=(2, 16)) for seed in seeds]
        return np.array(rows).transpose(1, 0, 2).astype(np.float32)

    def write(self, document: Sequence[int], row: int) -> None:
        for layer, rows in enumerate(self.rows):
            rows[:, row : row + len(document)] = self.right(layer, document)

    def key(self, tokens: Sequence[int], start: int = 0, end: int | None = None, **changes: Any) -> EngineKey:
        end = len(tokens) if end is None else end
        of_worker = changes.pop("of_worker", True)
        key = self.fake.key(tokens, "r", start, end, of_worker=of_worker)
        return msgspec.structs.replace(key, **changes)

    def store(self, *documents: Sequence[int], offset: int = 0) -> None:
        """Compute and store documents of one prompt."""
        at = 0
        for document in documents:
            self.write(document, offset + at)
            at += len(document) + len(SEPARATOR)
        assert self.ask(STORE_PRE_COMPUTED, self.key(prompt(*documents)), offset, self.instance_id, EVENT)[1]
        self.wipe()

    def lookup(self, tokens: Sequence[int], operation: Operation = LOOKUP, **changes: Any) -> Any:
        return self.fake.scheduler.call(operation, self.key(tokens, of_worker=False, **changes))

    def retrieve(
        self, tokens: Sequence[int], found: Any, offset: int = 0, operation: Operation = RETRIEVE, **changes: Any
    ) -> tuple[bytes, bool]:
        answer: tuple[bytes, bool] = self.ask(
            operation, self.key(tokens, **changes), found, offset, self.instance_id, EVENT
        )
        return answer

    def check(self, documents: Mapping[int, Sequence[int]]) -> None:
        """The rows have these documents, by their first row, and nothing else."""
        for layer, rows in enumerate(self.rows):
            wanted = np.full((2, ROWS, HEADS * HEAD), GARBAGE, np.float32)
            for row, document in documents.items():
                wanted[:, row : row + len(document)] = self.right(layer, document)
            assert np.array_equal(rows, wanted), f"layer {layer}"


def prompt(*documents: Sequence[int]) -> list[int]:
    tokens: list[int] = []
    for document in documents:
        tokens += [*SEPARATOR, *document] if tokens else document
    return tokens


def status(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.status()["modules"]["blend_legacy"]
    return found


def held(server: Server) -> object:
    """Slots that someone reads or writes, or that a lookup keeps."""
    return server.status()["l1"]["held"]
