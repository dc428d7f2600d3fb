"""Names of chunks as text.  They are a view: what is stored has core's key, so that a server finds it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from blake3 import blake3

TAG: Final = "lmcache.tag."
SALT: Final = "lmcache.cache_salt"
"""Of request_configs: the tenant, by which quotas count."""
_TAG_DIGEST_BYTES: Final = 8


def tags_of(request_configs: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Names and values, sorted.  Raises ValueError for one with a character that separates them in a key."""
    tags = sorted(
        (name.removeprefix(TAG), str(value)) for name, value in (request_configs or {}).items() if name.startswith(TAG)
    )
    for name, value in tags:
        if not name or any(mark in name + value for mark in "@%"):
            raise ValueError(f"tag {name!r} with value {value!r}: a tag has a name, and neither has '@' or '%'")
    return tuple(tags)


def tagged_model(model_name: str, tags: tuple[tuple[str, str], ...]) -> str:
    """The model name of what is stored: chunks of other tags are not found."""
    if not tags:
        return model_name
    text = b"".join(len(each).to_bytes(4, "big") + each for tag in tags for each in (tag[0].encode(), tag[1].encode()))
    return f"{model_name}##tags-{blake3(text).hexdigest(_TAG_DIGEST_BYTES)}"


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class CacheEngineKey:
    """`model@world size@worker@hash in hex@dtype[@tag%value...]`.  Two are equal whatever else their requests configure.

    A model name may contain `@`; a tag may not."""

    model_name: str
    world_size: int
    worker_id: int
    chunk_hash: bytes
    dtype: Any
    request_configs: Mapping[str, Any] | None = field(default=None, compare=False)
    tags: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        object.__setattr__(self, "tags", tags_of(self.request_configs))

    def to_string(self) -> str:
        return "@".join((*self._parts(), *(f"{name}%{value}" for name, value in self.tags)))

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Raises ValueError for what `to_string` does not write."""
        parts = text.split("@")
        tags: list[str] = []
        while parts and "%" in parts[-1]:
            tags.insert(0, parts.pop())
        return cls(*cls._fields(parts, text), request_configs=_configs(tags))

    def split_layers(self, num_layers: int) -> list[LayerCacheEngineKey]:
        """One key for each layer."""
        facts = (self.model_name, self.world_size, self.worker_id, self.chunk_hash, self.dtype)
        return [LayerCacheEngineKey(*facts, self.request_configs, layer_id=layer) for layer in range(num_layers)]

    def _parts(self) -> list[str]:
        return [self.model_name, str(self.world_size), str(self.worker_id), self.chunk_hash.hex(), self.dtype]

    @staticmethod
    def _fields(parts: list[str], text: str) -> tuple[str, int, int, bytes, str]:
        try:
            *model, world_size, worker_id, chunk_hash, dtype = parts
            if not model:
                raise ValueError
            return "@".join(model), int(world_size), int(worker_id), bytes.fromhex(chunk_hash), dtype
        except ValueError:
            raise ValueError(
                f"not a key: {text[:200]!r}; one is model@world_size@worker@hash@dtype[@tag%value]"
            ) from None


@dataclass(frozen=True, slots=True)
class LayerCacheEngineKey(CacheEngineKey):
    """The key of one layer of a chunk: `@layer` is behind the type."""

    layer_id: int = 0

    def _parts(self) -> list[str]:
        return [*CacheEngineKey._parts(self), str(self.layer_id)]

    @classmethod
    def from_string(cls, text: str) -> Self:
        parts = text.split("@")
        tags: list[str] = []
        while parts and "%" in parts[-1]:
            tags.insert(0, parts.pop())
        if not parts or not parts[-1].isdecimal():
            raise ValueError(f"not a key of a layer: {text[:200]!r}; the layer is behind the type")
        layer = int(parts.pop())
        return cls(*cls._fields(parts, text), request_configs=_configs(tags), layer_id=layer)


def _configs(tags: list[str]) -> dict[str, str] | None:
    return {TAG + name: value for name, _, value in (tag.partition("%") for tag in tags)} or None
