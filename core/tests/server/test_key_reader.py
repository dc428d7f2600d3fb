"""Reading keys with a memory gives what reading them without one gives: the same key, the same hashes, the same error."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lmcache_client import engine_key
from lmcache_client.codec import OperationCodec
from lmcache_client.engine_key import EngineKey, TokenSequence
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import LOOKUP
from lmcache_core.kernels.choice import PURE
from lmcache_core.model.keys import HashChain
from lmcache_core.server import chunk_hashing
from lmcache_core.server.chunk_hashing import KeyReader, PromptHasher, open_chain
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_devkit.fake_clock import FakeClock

CHUNK = 4
encode = msgspec.msgpack.encode


class Side:
    """A reader and a hasher; with `native`, as with the compiled kernel."""

    def __init__(self, native: bool = False, kind: HashChain = HashChain.BLAKE3) -> None:
        chain = open_chain(kind, CHUNK, "seed", replace(PURE, native=native))
        self.memory = PromptMemory(600, FakeClock())
        self.hasher = PromptHasher(chain, self.memory)
        self.codec = OperationCodec(LOOKUP, {EngineKey: KeyReader(chain, self.memory)})

    def ask(self, frame: bytes, hashing: bool = True) -> object:
        """Everything that a handler could see of a key."""
        try:
            key, _ = self.codec.decode_payload([frame, b"\x01"])
        except ProtocolError as error:
            return str(error)
        tokens = key.token_ids
        assert isinstance(tokens, TokenSequence)
        assert tokens.cache_salt == key.cache_salt
        fields = (key.model_name, key.world_size, key.worker_id, key.start, key.end, key.request_id, key.cache_salt)
        seen: list[object] = [*fields, key.request_configs, key.num_kv_readers, tokens.count, bytes(tokens.encoded)]
        if hashing:
            try:
                seen.append(list(self.hasher.chunk_hashes(tokens, key.end)))
            except ProtocolError as error:
                seen.append(str(error))
        return seen


INTEGERS = st.sampled_from([0, 1, 200, 70000]).map(encode) | st.sampled_from(
    [b"\xcc\x01", b"\xcd\x00\x01", b"\xcf" + bytes(7) + b"\x01", b"\xd0\x01"]
)
ODD = st.sampled_from(
    [b"\xff", b"\xc0", b"\xa1x", b"\x91\x01", b"\xcf" + b"\xff" * 8, b"\xaacache_salt", b"\xa9token_ids", b""]
)
PIECES = st.lists(INTEGERS, min_size=1, max_size=6)
TEXTS = st.sampled_from(
    ["", "a", "b", "token_ids", "ªcache_salt", "ªcache_saltÙ\x80", "é" * 20, "x" * 40, "y" * 150, "z" * 300]
) | st.text(max_size=10)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Keys whose tokens overlap, in all the forms that msgpack allows, and damaged ones."""
    shared = [b"\x01", b"\xcc\xc8", b"\xce\x00\x01\x11\x70", b"\x02"] * 6
    tokens = shared[: draw(st.integers(0, 24))] + draw(st.lists(INTEGERS | ODD, max_size=3) | PIECES)
    count = len(tokens) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 5]))
    header = draw(
        st.sampled_from([b"\xdc" + struct.pack(">H", max(0, count)), b"\xdd" + struct.pack(">I", max(0, count))])
    )
    if 0 <= count <= 15 and draw(st.booleans()):
        header = bytes((0x90 | count,))
    array = header + b"".join(tokens)
    fields: list[tuple[str, bytes]] = [
        ("model_name", encode(draw(st.sampled_from(["m", "token_ids", "m" * 40, "m" * 600])))),
        ("world_size", encode(draw(st.sampled_from([1, 200, 70000])))),
        ("worker_id", encode(draw(st.sampled_from([None, 0, 3])))),
        ("token_ids", array),
        ("start", encode(0)),
        ("end", encode(draw(st.integers(0, 30)))),
        ("request_id", encode(draw(TEXTS))),
        ("cache_salt", encode(draw(TEXTS))),
        ("request_configs", encode(draw(st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2)))),
        ("num_kv_readers", encode(1)),
    ]
    match draw(st.sampled_from(["plain"] * 6 + ["shuffled", "short", "twice", "other", "cut", "long", "hashes"])):
        case "shuffled":
            fields = draw(st.permutations(fields))
        case "short":
            del fields[draw(st.integers(0, len(fields) - 1))]
        case "twice":
            fields.append(
                draw(st.sampled_from([("token_ids", b"\x91\x05"), ("cache_salt", b"\xa1b"), ("end", b"\x00")]))
            )
        case "hashes":
            fields[3] = ("token_ids", draw(st.sampled_from([array, b"\x90", b"\x90"])))
            hashes = [bytes([each]) * 16 for each in draw(st.lists(st.integers(0, 3), max_size=8))]
            more = [("chunk_hashes", encode(hashes)), ("hash_algorithm", encode(draw(st.sampled_from(["", "a", "b"]))))]
            fields[draw(st.sampled_from([0, 10])) : 0] = more
        case "other":
            fields.insert(draw(st.integers(0, 4)), ("unknown", draw(st.sampled_from([b"\x01", b"\x91\x01", b"\xa1x"]))))
        case "cut":
            frame = b"".join([bytes((0x80 | len(fields),)), *(encode(name) + value for name, value in fields)])
            return frame[: draw(st.integers(0, len(frame)))]
        case "long":
            return b"".join(
                [
                    bytes((0x80 | len(fields),)),
                    *(b"\xd9" + bytes((len(name),)) + name.encode() + v for name, v in fields),
                ]
            )
    return b"".join([bytes((0x80 | len(fields),)), *(encode(name) + value for name, value in fields)])


@pytest.mark.parametrize("native", [False, True])
@given(st.lists(st.tuples(frames(), st.booleans()), max_size=8), st.lists(st.integers(0, 7), max_size=5))
def test_a_memory_changes_nothing_that_is_read(native: bool, asked: list[tuple[bytes, bool]], again: list[int]) -> None:
    kept = Side(native)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_hashing, "DECODED_BYTES_MAX", 8)
        for frame, hashing in [*asked, *(asked[number] for number in again if number < len(asked))]:
            assert kept.ask(frame, hashing) == Side().ask(frame, hashing)


def frame_of(tokens: list[int], request_id: str = "r", salt: str = "", model: str = "m", **other: Any) -> bytes:
    fields = {"worker_id": None, "request_configs": None, **other}
    return encode(
        EngineKey(
            model, 1, fields["worker_id"], msgspec.Raw(encode(tokens)), 0, len(tokens), request_id, salt,
            fields["request_configs"], 1,
        )
    )  # fmt: skip


TOKENS = [number * 7 % 50_000 for number in range(4000)]


def unread(side: Side, frame: bytes) -> int:
    """Bytes that are still to be looked at, the frame's other fields among them."""
    return side.codec.open_payload([frame, b"\x01"])[1]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("salt", ["", "tenant", "t" * 31, "t" * 64, "t" * 127])
def test_a_known_prompt_is_compared_and_not_decoded(native: bool, salt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(native)
    first = frame_of(TOKENS, salt=salt)
    side.ask(first)
    assert unread(side, first) < 300
    decoded: list[int] = []
    decode = engine_key.decode_fields

    def measured(frame: Any) -> Any:
        decoded.append(len(frame))
        return decode(frame)

    monkeypatch.setattr(chunk_hashing, "decode_fields", measured)
    grown = frame_of([*TOKENS, 1, 2, 3, 4, 5], "another", salt)
    assert unread(side, grown) < 300
    assert side.ask(grown) == Side().ask(grown)
    assert side.ask(frame_of(TOKENS[:2001], "short", salt)) == Side().ask(frame_of(TOKENS[:2001], "short", salt))
    assert max(decoded) < 400


@pytest.mark.parametrize("native", [False, True])
def test_a_prompt_that_parts_from_a_known_one_is_read_from_there(native: bool) -> None:
    side = Side(native)
    side.ask(frame_of(TOKENS))
    other = frame_of([*TOKENS[:3000], *range(1000)])
    assert unread(side, other) < 4000
    assert side.ask(other) == Side().ask(other)
    assert unread(side, other) < 300


def test_a_tenant_pays_for_what_another_one_has_sent() -> None:
    side = Side()
    side.ask(frame_of(TOKENS, salt="one"))
    side.ask(frame_of([1, 2, 3, 4], salt="other"))
    assert unread(side, frame_of(TOKENS, salt="one")) < 300
    assert unread(side, frame_of(TOKENS, salt="other")) > 8000


@pytest.mark.parametrize(
    "text",
    ["ªcache_salt", "ªcache_saltÙ\x80" + "one" * 60, "ªcache_salt£one", "\nªcache_salt", "cache_salt", "ªcache_salt¡1"],
)
def test_no_text_in_a_request_makes_it_another_tenants(text: str) -> None:
    """Timing another tenant's prompts would take a salt that only looks like the request's."""
    side = Side()
    for salt in ("one", text, "1"):
        side.ask(frame_of(TOKENS, salt=salt))
    nested = {"start": 0, "end": 1, "request_id": "r", "cache_salt": "one", "request_configs": None}
    for configs in ({"lmcache.a": text + "one"}, {text: "one"}, {text: text}, nested, {"lmcache.a": nested}):
        for request_id in ("r", text, "\xa5start" + text):
            assert unread(side, frame_of(TOKENS, request_id, request_configs=configs)) > 8000
            assert unread(side, frame_of(TOKENS, request_id, "one", request_configs=configs)) < 1000


def test_no_token_makes_it_another_tenants() -> None:
    side = Side()
    side.ask(frame_of(TOKENS, salt="one"))
    fields = b"\xa5start\x00\xa3end\x01\xaarequest_id\xa1r\xaacache_salt\xa3one"
    for form in (b"\xcd\x00", b"\xce\x00\x00\x00"):
        tokens = [*TOKENS, *msgspec.msgpack.decode(b"\xdc\x00\x06" + form + fields[:6], type=list[int])]
        frame = frame_of(tokens)
        assert fields[:6] in frame
        assert unread(side, frame) > 8000
        assert side.ask(frame) == Side().ask(frame)


def test_heads_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_hashing, "HEADS_MAX", 3)
    side = Side()
    for number in range(20):
        frame = frame_of(TOKENS, model=f"m{number}")
        assert side.ask(frame) == Side().ask(frame)
        assert unread(side, frame) < 300
        assert len(side.codec._readers[0]._heads) <= 3  # type: ignore[union-attr]


def test_what_is_forgotten_is_read_again() -> None:
    side = Side()
    frame = frame_of(TOKENS)
    expected = Side().ask(frame)
    side.ask(frame)
    opened, _ = side.codec.open_payload([frame, b"\x01"])
    side.memory._clock.advance(1000)  # type: ignore[attr-defined]
    side.memory.expire()
    key, _ = side.codec.decode_payload(opened)
    assert list(side.hasher.chunk_hashes(key.token_ids, 4000)) == expected[-1]  # type: ignore[index]
    assert side.ask(frame) == expected


def test_an_opened_key_can_be_read_twice() -> None:
    side = Side()
    for frame in (frame_of(TOKENS), frame_of(TOKENS), frame_of([*TOKENS, *range(2000)])):
        opened, _ = side.codec.open_payload([frame, b"\x01"])
        assert side.codec.decode_payload(opened) == side.codec.decode_payload(opened)


@pytest.mark.parametrize("kind", [HashChain.BLAKE3, HashChain.SHA256_CBOR])
def test_every_chain_is_served(kind: HashChain) -> None:
    side = Side(kind=kind)
    for tokens in (TOKENS[:100], TOKENS, TOKENS[:99]):
        frame = frame_of(tokens)
        assert side.ask(frame) == Side(kind=kind).ask(frame)
    assert unread(side, frame_of(TOKENS)) < 300
