"""What engines ask about, and the payload of a module's operation that asks it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from lmcache_client.engine_key import EngineKey, TokenSequence, encode_tokens
from lmcache_core.contracts.operation import Handler
from lmcache_devkit.module_bench import CHUNK_TOKENS, INSTANCE, LIMITED_SALT, MODEL, REFUSED_SALT

CHUNKS: Final = 4
UNKNOWN_INSTANCE: Final = 404


class Scene(NamedTuple):
    """Where the chunks of a prompt are, whose they are, and which worker asks."""

    name: str
    in_l1: bool = False
    in_l2: bool = False
    salt: str = ""
    instance_id: int = INSTANCE


IN_L1: Final = Scene("in L1", in_l1=True, in_l2=True)
IN_L2: Final = Scene("in L2", in_l2=True)
NOWHERE: Final = Scene("nowhere")
OF_A_TENANT: Final = Scene("of a tenant", in_l1=True, in_l2=True, salt="tenant")
OVER_QUOTA: Final = Scene("over its quota", in_l1=True, salt=LIMITED_SALT)
REFUSED: Final = Scene("refused", in_l1=True, salt=REFUSED_SALT)
UNKNOWN_WORKER: Final = Scene("unknown worker", in_l1=True, instance_id=UNKNOWN_INSTANCE)
SCENES: Final = (IN_L1, IN_L2, NOWHERE, OF_A_TENANT, OVER_QUOTA, REFUSED, UNKNOWN_WORKER)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request of an engine: four whole chunks of a prompt, and a few tokens more.  `number` makes its prompt, its
    request id and its connection different from those of others."""

    scene: Scene
    number: int

    @property
    def request_id(self) -> str:
        return f"request-{self.number}"

    @property
    def connection(self) -> bytes:
        return b"engine-%d" % self.number

    @property
    def tokens(self) -> list[int]:
        return [self.number, *range(1, CHUNKS * CHUNK_TOKENS + 3)]

    @property
    def end(self) -> int:
        """One past the last token of its whole chunks."""
        return CHUNKS * CHUNK_TOKENS

    def key(self) -> EngineKey:
        raw = encode_tokens(self.tokens)
        return EngineKey(MODEL, 1, 0, raw, 0, self.end, self.request_id, self.scene.salt, None, 1)


def payload_about(handler: Handler, request: EngineRequest) -> tuple[Any, ...]:
    """What an engine sends to ask this of the operation: by the names of the handler's parameters where they say what is
    meant, by the types of the payload otherwise.  Raises TypeError for a type that it knows no value of."""
    parameters = list(inspect.signature(handler.function).parameters)[1:]
    kinds = handler.operation.payload
    names = parameters if len(parameters) == len(kinds) else [""] * len(kinds)
    return tuple(_value(name, kind, request) for name, kind in zip(names, kinds, strict=True))


_BY_NAME: Final[Sequence[tuple[str, type, Callable[[EngineRequest], Any]]]] = (
    ("instance", int, lambda request: request.scene.instance_id),
    ("worker_id", int, lambda request: 0),
    ("shard", int, lambda request: 0),
    ("rank", int, lambda request: 0),
    ("world", int, lambda request: 1),
    ("tp_size", int, lambda request: 1),
    ("readers", int, lambda request: 1),
    ("first", int, lambda request: 0),
    ("start", int, lambda request: 0),
    ("begin", int, lambda request: 0),
    ("end", int, lambda request: request.end),
    ("layers", int, lambda request: 2),
    ("hidden", int, lambda request: 64),
    ("slots", int, lambda request: CHUNK_TOKENS),
    ("block_size", int, lambda request: CHUNK_TOKENS),
    ("dtype", str, lambda request: "float32"),
    ("model", str, lambda request: MODEL),
    ("salt", str, lambda request: request.scene.salt),
    ("tenant", str, lambda request: request.scene.salt),
)
"""Words in names of parameters and fields, in the order in which they are looked for."""
_BY_TYPE: Final[Mapping[Any, Callable[[EngineRequest], Any]]] = {
    EngineKey: EngineRequest.key,
    TokenSequence: lambda request: encode_tokens(request.tokens),
    msgspec.Raw: lambda request: encode_tokens(request.tokens),
    int: lambda request: request.scene.instance_id,
    str: lambda request: request.request_id,
    float: lambda request: 5.0,
    bool: lambda request: False,
    bytes: lambda request: b"",
    bytearray: lambda request: b"",
    memoryview: lambda request: b"",
    type(None): lambda request: None,
    Any: lambda request: None,
}


def _value(name: str, kind: Any, request: EngineRequest) -> Any:
    for word, of, value in _BY_NAME:
        if word in name and of in (kind, *get_args(kind)):
            return value(request)
    if kind in _BY_TYPE:
        return _BY_TYPE[kind](request)
    origin, inside = get_origin(kind), get_args(kind)
    if kind in (list, tuple, dict) or origin is dict:
        return (origin or kind)()
    if origin in (list, tuple, Sequence):
        return request.tokens if inside[:1] == (int,) else []
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: _value(field.name, field.type, request) for field in fields if field.required})
    if inside:  # a union: the first that is known
        return _value(name, inside[0], request)
    raise TypeError(f"no value is known for {kind!r}; override `request_about` of the suite")
