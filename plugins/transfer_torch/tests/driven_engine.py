"""An engine without a model whose worker lets the server copy: pages in shared memory, and chunks whose right bytes follow
from the tokens.  One thread."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import zmq
from blake3 import blake3
from numpy.typing import NDArray

from lmcache_client import EngineKey, Operation
from lmcache_client.codec import OperationCodec
from lmcache_client.operations import END_SESSION
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_transfer_torch.messages import REGISTER, RETRIEVE, STORE, UNREGISTER

SHM = Path("/dev/shm")
EVENT = b"stub_ipc_handle"
LAYERS, HEADS, HEAD_BYTES, BLOCKS, BLOCK_TOKENS = 2, 2, 128, 64, 4
"""As `FakeEngine`'s layout, so that both find each other's chunks: rows of 64 float32."""
GARBAGE = 0xA5
ANSWER_SECONDS = 20.0
MALFORMED = tuple(
    bytes.fromhex(text) for text in ("", "c1", "c0", "9301", "ddffffffff", "81a16101", "cfffffffffffffffff", "a3fffefd")
)
"""Nothing, what MessagePack has not, nil, an array and a huge one that end early, a map, 2**64 - 1, text that is not UTF-8."""
NUMBER = MALFORMED[6]


class Segment:
    """Shared memory of a worker, under a name that means only this one."""

    def __init__(self, size: int, name: str | None = None) -> None:
        self.name = name or f"lmcache_kv_{os.getpid()}_{secrets.token_hex(6)}"
        self.path, self.size = SHM / self.name, size
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, size)
        self._map = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


class KernelGroup:
    """Layers of one geometry: a page is [heads, slots, head]."""

    def __init__(self, layers: int = LAYERS, heads: int = HEADS, window: int = -1, recurrent: bool = False) -> None:
        self.layers, self.heads, self.window, self.recurrent = layers, heads, window, recurrent
        shape = (layers, BLOCKS, heads, BLOCK_TOKENS, HEAD_BYTES)
        self.segments = [Segment(int(np.prod(shape[1:]))) for _ in range(layers)]
        self.pages = [segment.bytes.reshape(shape[1:]) for segment in self.segments]
        self.wipe()

    def wipe(self) -> None:
        for pages in self.pages:
            pages[:] = GARBAGE

    def object_bytes(self, chunk_tokens: int) -> int:
        return self.layers * chunk_tokens * self.heads * HEAD_BYTES

    def write(self, blocks: Sequence[int], payload: bytes) -> None:
        """Put a chunk object (layer, slot, head) into pages, null blocks left out."""
        rows = np.frombuffer(payload, np.uint8).reshape(self.layers, len(blocks), BLOCK_TOKENS, self.heads, HEAD_BYTES)
        for layer, pages in enumerate(self.pages):
            for place, block in enumerate(blocks):
                if block:
                    pages[block] = rows[layer, place].transpose(1, 0, 2)

    def read(self, blocks: Sequence[int]) -> bytes:
        """The chunk object that these pages are."""
        return np.stack([pages[list(blocks)].transpose(0, 2, 1, 3) for pages in self.pages]).tobytes()

    def tensors(self) -> list[dict[str, Any]]:
        item = 4
        shape = [BLOCKS, self.heads, BLOCK_TOKENS, HEAD_BYTES // item]
        stride = [int(np.prod(shape[at + 1 :])) for at in range(4)]
        metadata = {"dtype": "float32", "shape": shape, "stride": stride, "storage_offset": 0, "device_uuid": "cpu"}
        return [
            {"type": "cpu_shm", "shm_name": f"/{each.name}", "nbytes": each.size, "version": 1, "metadata": metadata}
            for each in self.segments
        ]


def extension(descriptor: Mapping[str, Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(1, msgspec.msgpack.encode(descriptor))


class DrivenEngine:
    """A scheduler and a worker of `model`.  As a context manager it registers, and leaves without a word."""

    def __init__(self, endpoint: str, groups: Sequence[KernelGroup] | None = None, **options: Any) -> None:
        self.fake = FakeEngine(endpoint, **{"block_tokens": BLOCK_TOKENS, **options})
        self.groups = list(groups) if groups is not None else [KernelGroup()]
        self.instance_id = self.fake.instance_id
        self.chunk_tokens = self.fake.chunk_tokens
        self._model = options.get("model", "model")

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.fake.close()
        for group in self.groups:
            for segment in group.segments:
                segment.close()

    # --- registration

    def descriptors(self) -> list[dict[str, Any]]:
        return [descriptor for group in self.groups for descriptor in group.tensors()]

    def register(self, descriptors: Sequence[Mapping[str, Any]] | None = None, **changes: Any) -> None:
        infos: list[dict[str, Any]] = []
        for number, group in enumerate(self.groups):
            first = sum(each.layers for each in self.groups[:number])
            infos.append({
                "engine_group_id": number, "layer_indices": list(range(first, first + group.layers)),
                "tokens_per_block": BLOCK_TOKENS, "sw_size_tokens": group.window, "extra_object_group_tag": 0,
                "recurrent_state": group.recurrent,
            })  # fmt: skip
        payload: dict[str, Any] = {
            "instance_id": self.instance_id, "tensors": [extension(each) for each in descriptors or self.descriptors()],
            "model": self._model, "world_size": 1, "engine": "vllm", "hints": {"kv_layout": "HND"},
            "groups": infos if len(infos) > 1 else [],
        } | changes  # fmt: skip
        self.fake.worker.call(REGISTER, *payload.values())

    def unregister(self) -> None:
        self.fake.worker.call(UNREGISTER, self.instance_id)

    # --- what a prompt looks like

    def blocks(self, chunks: int, first: int = 1) -> list[int]:
        """Block ids of that number of chunks, from this block on.  Block 0 is the null block."""
        return list(range(first, first + chunks * self.chunk_tokens // BLOCK_TOKENS))

    def content(self, tokens: Sequence[int], chunk: int, group: int = 0) -> bytes:
        """The right bytes of a chunk in a kernel group."""
        if group == 0:
            return self.fake.content(tokens, chunk)
        return blake3(self.fake.content(tokens, chunk), derive_key_context=f"group {group}").digest(
            self.groups[group].object_bytes(self.chunk_tokens)
        )

    def fill(self, tokens: Sequence[int], blocks: Sequence[int], start: int = 0) -> None:
        """What computing these tokens leaves in the pages of every group."""
        per_chunk = self.chunk_tokens // BLOCK_TOKENS
        for at in range(len(blocks) // per_chunk):
            for number, group in enumerate(self.groups):
                chunk = start // self.chunk_tokens + at
                group.write(blocks[at * per_chunk : (at + 1) * per_chunk], self.content(tokens, chunk, number))

    # --- requests

    def lookup(self, tokens: Sequence[int], request: str = "r") -> int:
        return self.fake.lookup(tokens, request)

    def store_blocks(
        self, tokens: Sequence[int], block_ids: Any, request: str = "r", start: int = 0, end: int | None = None
    ) -> tuple[bytes, bool]:
        key = self.fake.key(tokens, request, start, self.fake.whole(tokens) if end is None else end)
        answer: tuple[bytes, bool] = self.fake.worker.call(STORE, key, self.instance_id, block_ids, EVENT)
        return answer

    def retrieve_blocks(
        self,
        tokens: Sequence[int],
        block_ids: Any,
        request: str = "r",
        start: int = 0,
        end: int | None = None,
        skip: int = 0,
    ) -> tuple[bytes, bool]:
        key = self.fake.key(tokens, request, start, self.fake.whole(tokens) if end is None else end)
        answer: tuple[bytes, bool] = self.fake.worker.call(RETRIEVE, key, self.instance_id, block_ids, EVENT, skip)
        return answer

    def store(self, tokens: Sequence[int], request: str = "r", first_block: int = 1) -> bool:
        """Compute and store the whole chunks of a prompt."""
        blocks = self.blocks(len(tokens) // self.chunk_tokens, first_block)
        self.fill(tokens, blocks)
        return self.store_blocks(tokens, [blocks] * len(self.groups), request)[1]

    def retrieve(self, tokens: Sequence[int], request: str = "r", first_block: int = 1) -> list[list[bytes]] | None:
        """The chunks of a prompt by kernel group, out of pages that were wiped before; None for a miss."""
        blocks = self.blocks(len(tokens) // self.chunk_tokens, first_block)
        for group in self.groups:
            group.wipe()
        _, found = self.retrieve_blocks(tokens, [blocks] * len(self.groups), request)
        if not found:
            return None
        per_chunk = self.chunk_tokens // BLOCK_TOKENS
        return [
            [group.read(blocks[at : at + per_chunk]) for at in range(0, len(blocks), per_chunk)]
            for group in self.groups
        ]

    def right(self, tokens: Sequence[int]) -> list[list[bytes]]:
        """What `retrieve` must give."""
        return [
            [self.content(tokens, chunk, number) for chunk in range(len(tokens) // self.chunk_tokens)]
            for number in range(len(self.groups))
        ]


def answers_to_wrong_frames(
    endpoint: str, operation: Operation, payload: Sequence[Any]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Send a request with each of its frames in turn replaced by what cannot be read, and with one frame less or more.  Yields
    such a frame and the frames of the answer.  Raises AssertionError where none comes."""
    frames = [bytes(each) for each in OperationCodec(operation).encode_payload(payload)]
    name = msgspec.msgpack.encode(operation.name)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        requests = [
            (wrong, [*frames[:at], wrong, *frames[at + 1 :]])
            for at, frame in enumerate(frames)
            for wrong in (*MALFORMED, frame[:-1], frame + b"\x00")
        ]
        for wrong, sent in (*requests, (b"", frames[:-1]), (b"\x01", [*frames, b"\x01"])):
            socket.send_multipart([b"uid", name, *sent])
            assert socket.poll(int(ANSWER_SECONDS * 1000)), f"no answer to {sent!r}"
            yield wrong, socket.recv_multipart()[2:]
        for key in payload:
            if isinstance(key, EngineKey):  # a wrong frame may have been a right one
                socket.send_multipart([b"uid", *map(msgspec.msgpack.encode, (END_SESSION.name, key.request_id))])
                assert socket.poll(int(ANSWER_SECONDS * 1000))
