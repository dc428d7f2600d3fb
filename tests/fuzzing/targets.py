"""Readers of bytes that others wrote, each as a function of one input.

A target raises where a reader does anything that its documentation does not allow: an undeclared exception, an answer
that depends on what was read before, a value that does not encode back to what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec
from pydantic import SecretStr

from lmcache_client.codec import OperationCodec, decode_operation_frame, refusal
from lmcache_client.engine_key import EngineKey, TokenSequence, encode_tokens
from lmcache_client.errors import ProtocolError
from lmcache_client.hash_chain import read_prompt
from lmcache_client.layout import ITEM_BYTES, ObjectLayout
from lmcache_client.operations import LOOKUP, OPERATIONS, Operation
from lmcache_client.stock_pickles import read_tensors
from lmcache_core.contracts.serde import Serde
from lmcache_core.kernels.choice import PURE, Kernels
from lmcache_core.model.errors import DamagedObjectError
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey, parse_canonical
from lmcache_core.model.object_header import HEADER_BYTES, ObjectHeader, check, digest, inspect, seal, seal_encoded
from lmcache_core.model.object_header import SerdeMark as Mark
from lmcache_core.model.results import Outcome
from lmcache_core.server.chunk_hashing import KeyReader, PromptHasher, open_chain
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.stock_pickle import stock_pickle
from lmcache_l2_lm import frames
from lmcache_native import read_prompt as read_prompt_compiled
from lmcache_serde.aesgcm import AesGcmSettings, open_aesgcm
from lmcache_serde.fp8 import open_fp8
from lmcache_serde.integers import Int4Settings, Int8Settings, open_int4, open_int8
from lmcache_serde.master_key import KeySource
from lmcache_serde.zstd import ZstdSettings, open_zstd
from lmcache_transfer_torch.descriptors import EXT_TYPE, read_views
from lmcache_transfer_torch.messages import REGISTER, RETRIEVE, STORE
from tests.fuzzing import peer_targets
from tests.fuzzing.peer_targets import joined, peer_answers, peer_requests, pieces, tcp_frames

Target = Callable[[bytes], None]

CHUNK_TOKENS: Final = 4
_MEMORY_BYTES: Final = 4000
_MEMORY_SECONDS: Final = 600.0
_TENSORS_MAX: Final = 4
_LAYOUT: Final = ObjectLayout(2, 2, 4, 8, "float16")
_SPACE: Final = KeySpace("org/model", 0x01000100, 0, "tenant", CHUNK_TOKENS, HashChain.BLAKE3, bytes(range(16)))
_KEY: Final = ObjectKey(_SPACE, bytes(range(32)))
_DIGEST_BYTES: Final = 16


# --- the engine port

_CODECS: Final = tuple(OperationCodec(operation) for operation in (*OPERATIONS, REGISTER, STORE, RETRIEVE))


def requests(data: bytes) -> None:
    """The operation frame and the payload frames of a request."""
    if not data:
        return
    codec, frames = _CODECS[data[0] % len(_CODECS)], pieces(data[1:])
    for frame in frames[:1]:
        refusal(frame)
        try:
            decode_operation_frame(frame)
        except ProtocolError:
            pass
    codec.open_payload(frames)
    try:
        values = codec.decode_payload(frames)
    except ProtocolError:
        return
    again = codec.decode_payload([bytes(frame) for frame in _encoded(codec.operation, values)])
    # NaN is the one value that does not equal itself.
    assert repr(again) == repr(values) or again == values, "what was decoded does not encode to itself"


def _encoded(operation: Operation, values: Sequence[Any]) -> list[bytes]:
    return OperationCodec(operation).encode_payload(values)


class _Reader:
    """What one server makes of keys, with or without a memory of what it has read."""

    def __init__(self, kernels: Kernels) -> None:
        chain = open_chain(HashChain.BLAKE3, CHUNK_TOKENS, "seed", kernels)
        self._clock = FakeClock()
        self._memory = PromptMemory(_MEMORY_SECONDS, self._clock, _MEMORY_BYTES)
        self._hasher = PromptHasher(chain, self._memory)
        self._codec = OperationCodec(LOOKUP, {EngineKey: KeyReader(chain, self._memory)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the prompts one by one: the garbage collector does not walk a memory that is dropped whole."""
        self._clock.advance(2 * _MEMORY_SECONDS)
        self._memory.expire()
        assert self._memory.size_bytes == 0

    def read(self, frame: bytes) -> object:
        try:
            key, _ = self._codec.decode_payload([frame, b"\x01"])
        except ProtocolError as error:
            return str(error)
        tokens = key.token_ids
        assert isinstance(tokens, TokenSequence)
        assert tokens.cache_salt == key.cache_salt, "another tenant's tokens"
        seen: list[object] = [
            (key.model_name, key.world_size, key.worker_id, key.start, key.end, key.request_id, key.cache_salt),
            (key.request_configs, key.num_kv_readers, tokens.count, bytes(tokens.encoded)),
        ]
        try:
            seen.append(list(self._hasher.chunk_hashes(tokens, key.end)))
        except ProtocolError:
            seen.append("refused")  # pure and compiled readers say it in words of their own
        return seen


_COMPILED: Final = Kernels(True, read_prompt_compiled, PURE.slot_table, PURE.recency)


def keys(data: bytes) -> None:
    """Frames of keys, read one after the other by a server that remembers, and each by servers that have seen nothing."""
    with _Reader(PURE) as pure, _Reader(_COMPILED) as compiled:
        for frame in pieces(data):
            with _Reader(PURE) as fresh:
                expected = fresh.read(frame)
            for reader in (pure, compiled):
                found = reader.read(frame)
                assert repr(found) == repr(expected), f"{found} after other keys, {expected} alone"


def prompts(data: bytes) -> None:
    """A run of integers, by both implementations of the kernel: the same hashes, or an error from both."""
    if len(data) < 2:
        return
    count, offset, frame = data[0], data[1] % 4, data[2:]
    answers: list[tuple[list[bytes], list[int], bytes, int] | None] = []
    for read in (read_prompt, read_prompt_compiled):
        try:
            answers.append(read(frame, min(offset, len(frame)), count, CHUNK_TOKENS, bytes(32), b""))
        except ValueError:
            answers.append(None)
    pure, compiled = answers
    if pure is not None and compiled is not None:
        assert [list(pure[0]), list(pure[1]), *pure[2:]] == [list(compiled[0]), list(compiled[1]), *compiled[2:]]
    else:
        assert pure is compiled, f"one implementation reads what the other one refuses: {answers}"


def pickles(data: bytes) -> None:
    """Tensors that a stock engine sends in-band."""
    try:
        tensors = read_tensors(data, _TENSORS_MAX)
    except ProtocolError:
        return
    assert len(tensors) <= _TENSORS_MAX
    for tensor in tensors:
        assert len(tensor.data) == prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        assert len(tensor.data) <= len(data), "bytes that the peer never sent"


def handles(data: bytes) -> None:
    """What a worker says of the tensors that the server is to map."""
    try:
        _, storages, views = read_views([msgspec.msgpack.Ext(EXT_TYPE, piece) for piece in pieces(data)])
    except (ProtocolError, ValueError):
        return
    for view in views:
        assert view.span_bytes() <= storages[view.storage].nbytes, "a tensor that reaches out of its memory"


# --- objects on media


def canonical_keys(data: bytes) -> None:
    try:
        key = parse_canonical(data)
    except ProtocolError:
        return
    assert key.canonical == data, "two byte strings name one object"


def headers(data: bytes) -> None:
    """A header page whose digest is right, as a faulty or foreign writer could seal it."""
    page = bytearray(data[: HEADER_BYTES - _DIGEST_BYTES].ljust(HEADER_BYTES, b"\0"))
    page[-_DIGEST_BYTES:] = digest(bytes(page))
    run = bytes(page) + data[HEADER_BYTES - _DIGEST_BYTES :]
    found = inspect(run[:HEADER_BYTES])
    outcome = check(memoryview(run), _KEY, at_most=True).outcome
    assert outcome in (Outcome.DONE, Outcome.DAMAGED, Outcome.FOREIGN)
    if outcome is Outcome.DONE:
        assert isinstance(found, ObjectHeader)
        assert found.key == _KEY
        assert digest(run[HEADER_BYTES : HEADER_BYTES + found.stored_bytes]) == found.stored_digest


def _serde(serde: Serde) -> Target:
    def target(data: bytes) -> None:
        parameters, _, stored = data.partition(b"|")
        into = bytearray(_LAYOUT.payload_bytes)
        try:
            serde.decode(_KEY, _LAYOUT, parameters, memoryview(stored), memoryview(into))
        except DamagedObjectError:
            return
        assert len(into) == _LAYOUT.payload_bytes

    target.__doc__ = f"Stored bytes that {type(serde).__name__} undoes."
    return target


_SERDES: Final[Mapping[str, Serde]] = MappingProxyType(
    {
        "zstd": open_zstd(ZstdSettings()),
        "fp8": open_fp8(None),
        "int8": open_int8(Int8Settings()),
        "int4": open_int4(Int4Settings()),
        "aesgcm": open_aesgcm(AesGcmSettings(keys=(KeySource(value=SecretStr(bytes(range(32)).hex())),))),
    }
)

# --- the lm:// protocol


def lm_messages(data: bytes) -> None:
    """A request of a client of the store server, or what a store answers to ours; what is read says what was sent."""
    if len(data) == frames.ANSWER_BYTES:
        try:
            answer = frames.parse_answer(data)
        except ProtocolError:
            return
        assert frames.pack_answer(answer)[:-4] == data[:-4]  # the location is not looked at
        return
    request_bytes = data[: frames.REQUEST_BYTES].ljust(frames.REQUEST_BYTES)
    try:
        request = frames.parse_request(request_bytes)
    except ProtocolError:
        return
    assert request.length >= 0
    assert request.verb is frames.Verb.HEALTH or frames.is_key(request.key)
    assert frames.pack_request(request) == request_bytes


TARGETS: Final[Mapping[str, Target]] = MappingProxyType(
    {
        "requests": requests,
        "keys": keys,
        "prompts": prompts,
        "pickles": pickles,
        "handles": handles,
        "canonical_keys": canonical_keys,
        "headers": headers,
        "peer_requests": peer_requests,
        "peer_answers": peer_answers,
        "tcp_frames": tcp_frames,
        "lm_messages": lm_messages,
        **{name: _serde(serde) for name, serde in _SERDES.items()},
    }
)


# --- where a corpus begins


def _key_frame(tokens: Sequence[int], request_id: str, salt: str = "") -> bytes:
    key = EngineKey("m", 1, None, encode_tokens(tokens), 0, len(tokens), request_id, salt, {"lmcache.a": 1}, 1)
    return msgspec.msgpack.encode(key)


def _sealed_run() -> bytes:
    run = memoryview(bytearray(HEADER_BYTES + 64))
    seal(run, _KEY, 1)
    return bytes(run[: HEADER_BYTES - _DIGEST_BYTES]) + bytes(run[HEADER_BYTES:])


def _encoded_run() -> bytes:
    run = memoryview(bytearray(HEADER_BYTES + 64))
    seal_encoded(
        run,
        _KEY,
        1,
        payload_bytes=128,
        payload_digest=bytes(16),
        serdes=[Mark("zstd", b"\x01\x03", 128), Mark("pad", b"", 60)],
    )
    return bytes(run[: HEADER_BYTES - _DIGEST_BYTES]) + bytes(run[HEADER_BYTES:])


def _stored(serde: Serde) -> bytes:
    into = memoryview(bytearray(serde.stored_bytes_max(_LAYOUT)))
    payload = memoryview(bytes(range(256)) * (_LAYOUT.payload_bytes // 256 + 1))[: _LAYOUT.payload_bytes]
    length = serde.encode(_KEY, _LAYOUT, payload, into)
    return serde.parameters() + b"|" + bytes(into[:length])


def seeds(name: str) -> list[bytes]:
    """Well-formed inputs of a target: a fuzzer that begins with nothing spends its time on the first bytes."""
    match name:
        case "requests":
            encode = msgspec.msgpack.encode
            lookup = _CODECS.index(next(codec for codec in _CODECS if codec.operation is LOOKUP))
            return [
                bytes([lookup]) + joined([_key_frame(range(9), "r"), encode(1)]),
                bytes([_CODECS.index(_CODECS[-3])])
                + joined([encode(1), b"\x90", encode("m"), encode(1), encode("vllm"), b"\x80", b"\x90"]),
                *(bytes([number]) + joined([encode({}), encode(1)]) for number in range(len(_CODECS))),
            ]
        case "keys":
            return [
                joined([_key_frame(range(9), "r"), _key_frame(range(12), "s"), _key_frame(range(12), "t", "tenant")])
            ]
        case "prompts":
            return [
                b"\x09\x00" + bytes(range(9)),
                b"\x05\x01" + b"\x00\xcc\xc8\xcd\x01\x00\xce\x00\x01\x00\x00\x01\x02",
            ]
        case "canonical_keys":
            return [_KEY.canonical]
        case "headers":
            return [_sealed_run(), _encoded_run()]
        case "handles":
            metadata = {"dtype": "float16", "shape": [2, 4], "stride": [4, 1], "storage_offset": 0, "device_uuid": ""}
            shared = {"type": "cpu_shm", "metadata": metadata, "version": 1, "shm_name": "/a", "nbytes": 4096}
            raw = {
                "type": "cuda_raw",
                "metadata": metadata,
                "version": 1,
                "ipc_handle": bytes(64),
                "alloc_offset": 0,
                "nbytes": 64,
            }
            return [joined([msgspec.msgpack.encode(shared)] * 2), joined([msgspec.msgpack.encode(raw)])]
        case "pickles":
            return [stock_pickle(_LAYOUT, [bytes(_LAYOUT.payload_bytes)] * count) for count in (1, 2)]
        case "lm_messages":
            key = b"org/model##0123456789abcdef@8@7@00ff@bfloat16@user%a"
            asked = [frames.Request(verb, key, 4096, frames.bytes_form(4096)) for verb in frames.Verb]
            answers = [frames.Answer(True, 384, frames.Form(1, 3, (2, 3, 4, 8))), frames.Answer(False)]
            return [*map(frames.pack_request, asked), *map(frames.pack_answer, answers)]
        case "peer_requests" | "peer_answers" | "tcp_frames":
            return peer_targets.seeds(name)
    return [_stored(_SERDES[name])]
