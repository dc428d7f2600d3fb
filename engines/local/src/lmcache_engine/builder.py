"""The engines of this process, by id."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.engine import LMCacheEngine
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import PagedConnector
from lmcache_engine.token_database import ChunkedTokenDatabase


class _Built(NamedTuple):
    engine: LMCacheEngine
    facts: dict[str, Any]
    """Of configuration and metadata, by field."""


class LMCacheEngineBuilder:
    """One engine for each id.  Any thread."""

    _lock = threading.Lock()
    _built: ClassVar[dict[str, _Built]] = {}

    @classmethod
    def get_or_create(
        cls,
        instance_id: str,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        gpu_connector: PagedConnector | None = None,
        broadcast_fn: Callable[..., Any] | None = None,
        broadcast_object_fn: Callable[..., Any] | None = None,
    ) -> LMCacheEngine:
        """The engine of this id, made where there is none.  Raises ValueError that names the field where there is one with
        another configuration or other metadata, and LMCacheError when it cannot be opened."""
        facts = _facts(config, metadata)
        with cls._lock:
            built = cls._built.get(instance_id)
            if built is not None:
                _check_same(instance_id, built.facts, facts)
                return built.engine
            database = ChunkedTokenDatabase(config, metadata)
            engine = LMCacheEngine(config, metadata, database, gpu_connector, broadcast_fn, broadcast_object_fn)
            cls._built[instance_id] = _Built(engine, facts)
            return engine

    @classmethod
    def get(cls, instance_id: str) -> LMCacheEngine | None:
        built = cls._built.get(instance_id)
        return built.engine if built else None

    @classmethod
    def destroy(cls, instance_id: str) -> None:
        """Close the engine of this id, if there is one."""
        with cls._lock:
            built = cls._built.pop(instance_id, None)
        if built is not None:
            built.engine.close()


def _facts(config: LMCacheEngineConfig, metadata: LMCacheMetadata) -> dict[str, Any]:
    about = {name: getattr(metadata, name) for name in metadata.__slots__}
    return config.as_dict() | {f"metadata.{name}": value for name, value in about.items()}


def _check_same(instance_id: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if old[name] != value:
            raise ValueError(
                f"engine '{instance_id}' is there with {name}={old[name]!r}, and is asked for with {value!r}; use another id, "
                "or destroy it first"
            )
