"""The requests `cb_...` of a raw client whose pages are shared memory: what they hold afterwards is what float64 says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from lmcache_blend.messages import (
    HANDSHAKE,
    NOTHING_FOUND,
    REGISTER_ROPE,
    REGISTER_ROPE_V3,
    REORDER_PLAN,
    RETRIEVE,
    RETRIEVE_V3,
    UNIFIED_LOOKUP,
    UNREGISTER_ROPE,
    UNREGISTER_ROPE_V3,
    Found,
)
from lmcache_blend.module import BlendModule
from lmcache_client import BlendMatch
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_transfer_torch.messages import REGISTER, STORE, UNREGISTER
from plugins.blend.tests.conftest import started
from plugins.transfer_torch.tests.driven_engine import DrivenEngine, Segment, extension

SIZE, SLOTS, BLOCKS, HEADS, HEAD = 16, 4, 64, 2, 16
"""Tokens of a chunk and of a block."""
POSITIONS = 512
SYSTEM = list(range(1000, 1000 + 2 * SIZE))
FIRST = list(range(2000, 2000 + 3 * SIZE))
SECOND = list(range(3000, 3000 + 2 * SIZE))
QUESTION = [7, 8, 9]
EVENT = b"stub_ipc_handle"
NO = (b"", False)
GARBAGE = 12345.0


class Rope:
    """How K depends on its position."""

    def __init__(self, base: float = 10_000.0, width: int = HEAD, neox: bool = True, magnitude: float = 1.0) -> None:
        self.width, self.neox, self.magnitude = width, neox, magnitude
        self._angles = base ** (-np.arange(0, width, 2) / width)

    def table(self) -> NDArray[np.float32]:
        angles = np.outer(np.arange(POSITIONS), self._angles)
        return (self.magnitude * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)

    def turned(self, keys: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """`keys` are `[token][head][element]`."""
        half = self.width // 2
        first = slice(0, half) if self.neox else slice(0, self.width, 2)
        second = slice(half, self.width) if self.neox else slice(1, self.width, 2)
        angles = np.outer(positions, self._angles)[:, None]
        cos, sin = np.cos(angles), np.sin(angles)
        found = keys.copy()
        found[..., first] = self.magnitude * (keys[..., first] * cos - keys[..., second] * sin)
        found[..., second] = self.magnitude * (keys[..., second] * cos + keys[..., first] * sin)
        return found


class Layers:
    """Two layers of one geometry, as vLLM keeps them on the CPU: of each head of a block K by element, then V by slot."""

    def __init__(self, rope: Rope | None, seed: int, head: int = HEAD) -> None:
        self.rope, self.seed, self.head = rope, seed, head
        self.segments = [Segment(BLOCKS * HEADS * SLOTS * 2 * head * 4) for _ in range(2)]
        self.pages = [each.bytes.view(np.float32).reshape(BLOCKS, HEADS, 2 * SLOTS * head) for each in self.segments]
        self.wipe()

    def wipe(self) -> None:
        for pages in self.pages:
            pages[:] = GARBAGE

    def right(
        self, layer: int, tokens: Sequence[int], start: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K and V `[token][head][element]` of tokens at positions from `start` on."""
        rows = [np.random.default_rng([self.seed, layer, token]).normal(size=(2, HEADS, self.head)) for token in tokens]
        keys, values = np.array(rows).transpose(1, 0, 2, 3)
        if self.rope:
            keys = self.rope.turned(keys, np.arange(start, start + len(tokens)))
        return keys, values.astype(np.float32).astype(np.float64)

    def rows(self, layer: int, blocks: Sequence[int]) -> tuple[NDArray[Any], NDArray[Any]]:
        """K and V `[block][slot][head][element]` in these blocks: copies."""
        found = self.pages[layer][list(blocks)]
        keys = found[..., : SLOTS * self.head].reshape(-1, HEADS, self.head, SLOTS).transpose(0, 3, 1, 2)
        values = found[..., SLOTS * self.head :].reshape(-1, HEADS, SLOTS, self.head).transpose(0, 2, 1, 3)
        return keys, values

    def write(self, tokens: Sequence[int], blocks: Sequence[int], start: int = 0) -> None:
        """What computing them leaves: whole blocks."""
        shape = (-1, SLOTS, HEADS, self.head)
        for layer, pages in enumerate(self.pages):
            keys, values = (each.reshape(shape) for each in self.right(layer, tokens, start))
            by_element = keys.transpose(0, 2, 3, 1).reshape(-1, HEADS, SLOTS * self.head)
            by_slot = values.transpose(0, 2, 1, 3).reshape(-1, HEADS, SLOTS * self.head)
            pages[list(blocks)] = np.concatenate([by_element, by_slot], axis=-1)

    def descriptors(self) -> list[dict[str, Any]]:
        shape = [BLOCKS, HEADS, SLOTS, 2 * self.head]
        return [described(segment, shape) for segment in self.segments]


def described(segment: Segment, shape: Sequence[int], dtype: str = "float32") -> dict[str, Any]:
    stride = [int(np.prod(shape[at + 1 :])) for at in range(len(shape))]
    metadata = {"dtype": dtype, "shape": list(shape), "stride": stride, "storage_offset": 0, "device_uuid": "cpu"}
    return {"type": "cpu_shm", "shm_name": segment.name, "nbytes": segment.size, "version": 1, "metadata": metadata}


class RawClient:
    """A scheduler and a worker.  Each group of layers is an engine group of its own."""

    def __init__(self, endpoint: str, *groups: Layers, **options: Any) -> None:
        self.fake = FakeEngine(endpoint, **options)
        self.about = options.get("model", "model"), options.get("world_size", 1)
        self.groups = groups or (Layers(Rope(), 1),)
        self.instance_id = self.fake.instance_id
        self.tables: list[Segment] = []

    def __enter__(self) -> RawClient:
        infos = [
            {"engine_group_id": at, "layer_indices": [2 * at, 2 * at + 1], "tokens_per_block": SLOTS}
            for at in range(len(self.groups))
        ]
        tensors = [extension(each) for group in self.groups for each in group.descriptors()]
        self.ask(REGISTER, self.instance_id, tensors, *self.about, "vllm", {"kv_layout": "HND"}, infos)
        return self

    def __exit__(self, *_: object) -> None:
        self.ask(UNREGISTER, self.instance_id)
        self.fake.close()
        for each in (*self.tables, *[segment for group in self.groups for segment in group.segments]):
            each.close()

    def ask(self, operation: Any, *payload: Any) -> Any:
        return self.fake.worker.call(operation, *payload)

    def table(self, content: NDArray[Any]) -> msgspec.msgpack.Ext:
        segment = Segment(content.nbytes)
        self.tables.append(segment)
        segment.bytes[:] = content.view(np.uint8).reshape(-1)
        return extension(described(segment, content.shape, str(content.dtype)))

    def share_rope(self, operation: Any = REGISTER_ROPE, **changes: Any) -> None:
        ropes = [group.rope for group in self.groups if group.rope]
        numbers = iter(range(len(ropes)))
        payload: dict[str, Any] = {
            "instance_id": self.instance_id,
            "cos_sin": [self.table(rope.table()) for rope in ropes],
            "head_size": HEAD,
            "neox": ropes[0].neox if ropes else True,
            "group_to_cache": [next(numbers) if group.rope else -1 for group in self.groups],
            "group_rot": [],
            "group_head_size": [group.head for group in self.groups],
            "kv_quant": "",
        } | changes
        assert self.ask(operation, *payload.values()) is None

    def store(self, tokens: Sequence[int]) -> None:
        blocks = list(range(1, 1 + len(tokens) // SLOTS))
        for group in self.groups:
            group.write(tokens, blocks)
        key = self.fake.key(tokens, "store", 0, len(tokens))
        assert self.ask(STORE, key, self.instance_id, [blocks] * len(self.groups), EVENT)[1]
        for group in self.groups:
            group.wipe()

    def lookup(self, tokens: Sequence[int], request: str = "r") -> Found | None:
        key = self.fake.key(tokens, request, 0, len(tokens), of_worker=False)
        found: Found | None = self.fake.scheduler.call(UNIFIED_LOOKUP, key, 1)
        return found

    def retrieve(
        self,
        tokens: Sequence[int],
        matches: Any,
        blocks: Any,
        operation: Any = RETRIEVE,
        request: str = "r",
        **more: Any,
    ) -> tuple[bytes, bool]:
        key = self.fake.key(tokens, request, 0, len(tokens))
        tables = more.get("tables", [blocks] * len(self.groups))
        answer: tuple[bytes, bool] = self.ask(operation, key, matches, tables, self.instance_id, EVENT)
        return answer

    def untouched(self) -> bool:
        return all((pages == GARBAGE).all() for group in self.groups for pages in group.pages)


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.info.engine_endpoint) as client:
        client.share_rope()
        yield client
        for request in ("r", "store"):
            client.fake.end(request)
        assert server.status()["l1"]["leases"] == 0
        client.fake.scheduler.clear()


def check(client: RawClient, prompt: Sequence[int], matches: Sequence[BlendMatch], blocks: Sequence[int]) -> None:
    """Every row of a match is right, every other one is as it was."""
    there = np.zeros(len(blocks) * SLOTS, bool)
    for each in matches:
        there[each.cur_st : each.cur_ed] = True
    for group in client.groups:
        for layer in range(2):
            right = group.right(layer, [*prompt, *[1] * len(there)][: len(there)])
            for kind, (found, expected) in enumerate(zip(group.rows(layer, blocks), right, strict=True)):
                rows = found.reshape(-1, HEADS, group.head)
                error = np.abs(rows[there] - expected[there]).max()
                assert error <= (4e-6 if kind == 0 else 0), f"{'KV'[kind]} of layer {layer} is off by {error}"
                assert (rows[~there] == GARBAGE).all()
            elsewhere = [block for block in range(BLOCKS) if block not in blocks]
            assert (group.pages[layer][elsewhere] == GARBAGE).all()


PROMPT = [*SYSTEM, *QUESTION, *SECOND, *FIRST, *QUESTION, 1]
SHUFFLED = [int(block) for block in np.random.default_rng(5).permutation(range(1, BLOCKS))[: -(-len(PROMPT) // SLOTS)]]


@pytest.mark.parametrize("rope", [
    Rope(), Rope(neox=False), Rope(width=8), Rope(base=500_000.0, magnitude=1.2079),
], ids=["neox", "gptj", "partial", "yarn"])  # fmt: skip
@pytest.mark.parametrize("version", ["", "_v3"])
def test_documents_in_another_order_are_moved(server: Server, rope: Rope, version: str) -> None:
    register, retrieve = (REGISTER_ROPE_V3, RETRIEVE_V3) if version else (REGISTER_ROPE, RETRIEVE)
    with RawClient(server.info.engine_endpoint, Layers(rope, 1)) as client:
        client.share_rope(register)
        client.store(SYSTEM + FIRST + SECOND)
        found = client.lookup(PROMPT)
        assert found is not None
        assert found.prefix_coverage_tokens == 2 * SIZE
        at = 2 * SIZE + 3
        assert [(each.old_st, each.cur_st) for each in found.non_prefix_segments] == [
            (old * SIZE, at + new * SIZE) for new, old in enumerate((5, 6, 2, 3, 4))
        ]
        assert found.segmented_prefix_segments == ()
        backwards = list(found.non_prefix_segments[::-1])
        assert client.retrieve(PROMPT, backwards, SHUFFLED, retrieve) == (EVENT, True)
        check(client, PROMPT, backwards, SHUFFLED)
        client.fake.end()
        assert server.status()["l1"]["leases"] == 0
        client.fake.scheduler.clear()


def test_own_chunks_behind_a_hole_are_not_turned(client: RawClient) -> None:
    prompt = SYSTEM + FIRST
    for start, end in ((0, SIZE), (2 * SIZE, 4 * SIZE)):
        blocks = list(range(1, 1 + (end - start) // SLOTS))
        client.groups[0].write(prompt[start:end], blocks, start)
        assert client.ask(STORE, client.fake.key(prompt, "store", start, end), client.instance_id, [blocks], EVENT)[1]
    stored = np.array(client.groups[0].pages)[:, 1 : 1 + 2 * SIZE // SLOTS]
    client.groups[0].wipe()
    found = client.lookup(prompt)
    assert found is not None
    assert found.prefix_coverage_tokens == SIZE
    matches = list(found.non_prefix_segments)
    assert [(each.old_st, each.cur_st) for each in matches] == [(2 * SIZE, 2 * SIZE), (3 * SIZE, 3 * SIZE)]
    blocks = SHUFFLED[: len(prompt) // SLOTS]
    assert client.retrieve(prompt, matches, blocks) == (EVENT, True)
    there = blocks[2 * SIZE // SLOTS : 4 * SIZE // SLOTS]
    assert np.array_equal(np.array(client.groups[0].pages)[:, there], stored), "not to the bit"


def test_groups_have_tables_and_head_sizes_of_their_own(server: Server) -> None:
    groups = Layers(Rope(base=100.0), 1), Layers(None, 2, head=24), Layers(Rope(base=1e6, width=8), 3, head=8)
    with RawClient(server.info.engine_endpoint, *groups, model="model") as client:
        client.share_rope(group_rot=[[0, HEAD], [], [0, 8]])
        client.store(FIRST)
        prompt = [1, 2, *FIRST, 3, 4]
        found = client.lookup(prompt)
        assert found is not None
        assert len(found.non_prefix_segments) == 3
        blocks = SHUFFLED[: len(prompt) // SLOTS]
        assert client.retrieve(prompt, found.non_prefix_segments, blocks) == (EVENT, True)
        check(client, prompt, found.non_prefix_segments, blocks)
        client.fake.end()


def moved(client: RawClient) -> tuple[list[int], list[BlendMatch]]:
    client.store(FIRST)
    prompt = [1, 2, 3, *FIRST, 4]
    found = client.lookup(prompt)
    assert found is not None
    assert len(found.non_prefix_segments) == 3
    return prompt, list(found.non_prefix_segments)


def with_(match: BlendMatch, **changes: Any) -> BlendMatch:
    return msgspec.structs.replace(match, **changes)


BAD_MATCHES: Mapping[str, Any] = {
    "overlap": lambda first, second, third: [first, first, third],
    "overlap by a token": lambda first, second, third: [
        first, with_(second, cur_st=second.cur_st - 1, cur_ed=second.cur_ed - 1),
    ],
    "backwards": lambda first, *rest: [with_(first, cur_st=first.cur_ed, cur_ed=first.cur_st), *rest],
    "old backwards": lambda first, *rest: [with_(first, old_st=first.old_ed, old_ed=first.old_st), *rest],
    "before the prompt": lambda first, *rest: [with_(first, cur_st=-13, cur_ed=3), *rest],
    "behind the prompt": lambda first, *rest: [*rest, with_(first, cur_st=1000, cur_ed=1000 + SIZE)],
    "more than a chunk": lambda first, *rest: [with_(first, old_ed=2 * SIZE, cur_ed=first.cur_ed + SIZE), rest[-1]],
    "no chunk": lambda first, *rest: [with_(first, old_st=1, old_ed=1 + SIZE), *rest],
    "another hash": lambda first, *rest: [with_(first, hash=rest[0].hash), *rest],
    "no hash": lambda first, *rest: [with_(first, hash=b""), *rest],
    "another place": lambda first, *rest: [with_(first, old_st=SIZE, old_ed=2 * SIZE), *rest],
    "shifted": lambda first, *rest: [with_(first, cur_st=first.cur_st - 1, cur_ed=first.cur_ed - 1), *rest],
    "huge": lambda first, *rest: [*rest, with_(first, cur_st=2**62, cur_ed=2**62 + SIZE)],
}  # fmt: skip


@pytest.mark.parametrize("change", BAD_MATCHES.values(), ids=BAD_MATCHES)
def test_matches_that_no_lookup_gives_move_nothing(module: BlendModule, client: RawClient, change: Any) -> None:
    prompt, matches = moved(client)
    before = module.counts().get("refused", 0)
    assert client.retrieve(prompt, change(*matches), SHUFFLED) == NO
    assert module.counts()["refused"] == before + 1
    assert client.untouched()
    assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
    check(client, prompt, matches, SHUFFLED)


BAD_BLOCKS: Mapping[str, Any] = {
    "out of range": lambda ids: [[*ids[:-1], BLOCKS]],
    "negative": lambda ids: [[*ids[:-1], -2]],
    "beyond 64 bits": lambda ids: [[*ids[:-1], 2**64 - 1]],
    "null": lambda ids: [[*ids[:-1], 0]],
    "too few": lambda ids: [ids[:-1]],
    "none": lambda ids: [[]],
    "no group": lambda ids: [],
}


@pytest.mark.parametrize("change", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
def test_blocks_that_cannot_be_move_nothing(module: BlendModule, client: RawClient, change: Any) -> None:
    prompt, matches = moved(client)
    before = module.counts().get("refused", 0)
    blocks = SHUFFLED[: len(prompt) // SLOTS]
    assert client.retrieve(prompt, matches, (), tables=change(blocks)) == NO
    assert module.counts()["refused"] == before + 1
    assert client.untouched()
    assert client.retrieve(prompt, matches, blocks) == (EVENT, True)
    check(client, prompt, matches, blocks)


BAD_ROPES: Mapping[str, tuple[dict[str, Any], str]] = {
    "odd": ({"cos_sin": [Rope().table()[:, 1:]]}, "even"),
    "wider than a head": ({"cos_sin": [Rope(width=2 * HEAD).table()]}, "rotary table for 32 elements"),
    "no rotation": ({"cos_sin": [np.ones((POSITIONS, HEAD), np.float32)]}, "not a rotation|cannot be turned"),
    "no sines": ({"cos_sin": [Rope().table() * np.repeat([1, 0], HEAD // 2).astype(np.float32)]}, "not a rotation"),
    "not finite": ({"cos_sin": [np.full((POSITIONS, HEAD), np.nan, np.float32)]}, "not finite"),
    "small integers": ({"cos_sin": [np.ones((POSITIONS, HEAD), np.int8)]}, "two dimensions"),
    "integers": ({"cos_sin": [np.ones((POSITIONS, HEAD), np.int32)]}, "'int32' are not known"),
    "three dimensions": ({"cos_sin": [Rope().table()[None]]}, "two dimensions"),
    "no such table": ({"group_to_cache": [1]}, "names table 1"),
    "a negative table": ({"group_to_cache": [-2]}, "names table -2"),
    "a head of another size": ({"group_head_size": [HEAD // 2]}, "is not known"),
    "a head of no size": ({"group_head_size": [0]}, "not K and V of one token"),
    "another window": ({"group_rot": [[4, HEAD]]}, "from its first element"),
    "a narrow window": ({"group_rot": [[0, 4]]}, "from its first element"),
    "quantized": ({"kv_quant": "fp8_e4m3"}, "quantized"),
    "too many": ({"cos_sin": [Rope().table()] * 9}, "9 rotary tables"),
    "unknown": ({"instance_id": 404}, "register_kv_cache comes before"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD_ROPES.values(), ids=BAD_ROPES)
def test_ropes_that_are_none_change_nothing(
    module: BlendModule, client: RawClient, changes: dict[str, Any], reason: str
) -> None:
    tables = {"cos_sin": [client.table(each) for each in changes["cos_sin"]]} if "cos_sin" in changes else {}
    client.share_rope(**{**changes, **tables})
    status = module.status()["refused"]
    assert isinstance(status, dict)
    assert any(re.search(reason, each) for each in status), status
    prompt, matches = moved(client)
    assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
    check(client, prompt, matches, SHUFFLED)


def test_latent_attention_is_refused_by_name(server: Server, module: BlendModule) -> None:
    """One row for each token, which has no K to turn: such engines are served as without blending."""
    with FakeEngine(server.info.engine_endpoint) as engine:
        instance = engine.instance_id // 2  # another one, which lets the server copy
        segment = Segment(BLOCKS * SLOTS * 24 * 4)
        infos = [{"engine_group_id": 0, "layer_indices": [0], "tokens_per_block": SLOTS}]
        tensors = [extension(described(segment, [BLOCKS, SLOTS, 24]))]
        engine.worker.call(REGISTER, instance, tensors, "latent", 1, "vllm", {"kv_layout": "NHD"}, infos)
        table = Segment(POSITIONS * HEAD * 4)
        table.bytes[:] = Rope().table().view(np.uint8).reshape(-1)
        cos_sin = [extension(described(table, [POSITIONS, HEAD]))]
        assert engine.worker.call(REGISTER_ROPE, instance, cos_sin, HEAD, True, [], [], [], "") is None
        refused = module.status()["refused"]
        assert isinstance(refused, dict)
        assert any("latent attention (MLA)" in reason for reason in refused), refused
        engine.worker.call(UNREGISTER, instance)
        segment.close()
        table.close()


def test_without_a_rope_nothing_is_moved(server: Server, module: BlendModule) -> None:
    with RawClient(server.info.engine_endpoint) as client:
        prompt, matches = moved(client)
        assert client.retrieve(prompt, matches, SHUFFLED) == NO
        assert client.untouched()
        client.share_rope()
        assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
        for operation in (UNREGISTER_ROPE, UNREGISTER_ROPE_V3):
            client.share_rope()
            assert client.ask(operation, client.instance_id) is None
            assert client.retrieve(prompt, matches, SHUFFLED) == NO
        assert client.ask(UNREGISTER_ROPE, 404) is None
        with RawClient(server.info.engine_endpoint) as other:
            other.share_rope()
            assert other.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
        client.fake.end()
        client.fake.scheduler.clear()
    with FakeEngine(server.info.engine_endpoint) as copying:
        key = copying.key(prompt, "r", 0, len(prompt))
        assert copying.worker.call(RETRIEVE, key, matches, [SHUFFLED], copying.instance_id, EVENT) == NO
    assert any("cb_register_rope comes first" in reason for reason in module.status()["refused"])  # type: ignore[attr-defined]


def test_a_chunk_that_has_left_moves_nothing(client: RawClient) -> None:
    prompt, matches = moved(client)
    client.fake.end()
    client.fake.scheduler.clear()
    assert client.retrieve(prompt, matches, SHUFFLED) == NO
    assert client.untouched()


def test_the_other_answers(client: RawClient) -> None:
    assert client.ask(HANDSHAKE, 1) == (1, True)
    assert client.ask(HANDSHAKE, 2) == (1, False)
    key = client.fake.key(FIRST, "r", 0, len(FIRST), of_worker=False)
    assert client.ask(REORDER_PLAN, key, 0, 10) == []
    assert client.lookup(FIRST) == NOTHING_FOUND
    assert (
        client.fake.scheduler.call(UNIFIED_LOOKUP, msgspec.structs.replace(key, model_name="unknown"), 1)
        == NOTHING_FOUND
    )
    assert client.fake.scheduler.call(UNIFIED_LOOKUP, msgspec.structs.replace(key, end=-1), 1) == NOTHING_FOUND


def test_answers_have_the_shapes_of_the_protocol(client: RawClient) -> None:
    prompt, (match, *_) = moved(client)
    found = client.lookup(prompt)
    shown = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
    assert list(shown) == ["prefix_coverage_tokens", "non_prefix_segments", "segmented_prefix_segments"]
    assert shown["non_prefix_segments"][0] == {
        "old_st": 0, "old_ed": SIZE, "cur_st": 3, "cur_ed": 3 + SIZE, "hash": match.hash,
    }  # fmt: skip


def test_where_nothing_copies_into_pages_the_handshake_says_so() -> None:
    server = started(supported_transfer_mode="engine_driven")
    try:
        with FakeEngine(server.info.engine_endpoint) as engine:
            assert engine.worker.call(HANDSHAKE, 1) == (1, False)
            key = engine.key(FIRST, "r", 0, len(FIRST))
            match = BlendMatch(0, SIZE, 0, SIZE, b"x")
            assert engine.worker.call(RETRIEVE, key, [match], [[1]], engine.instance_id, EVENT) == NO
        refused = server.status()["modules"]["blend"]["refused"]
        assert any("--supported-transfer-mode auto or lmcache_driven" in reason for reason in refused)
    finally:
        server.stop(0.0)


def test_an_engine_that_lets_the_server_copy_and_does_not_blend_is_served_as_before(server: Server) -> None:
    with DrivenEngine(server.info.engine_endpoint) as engine:
        tokens = SYSTEM + FIRST
        assert engine.lookup(tokens) == 0
        assert engine.store(tokens)
        assert engine.lookup(tokens) == len(tokens) // SIZE
        assert engine.retrieve(tokens, first_block=30) == engine.right(tokens)
        engine.unregister()
