"""Stand-ins for installed plugins, and traces in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmcache_core import (
    AccessFacts,
    ConfigError,
    EvictionDemand,
    EvictionPolicy,
    InsertFacts,
    Offer,
)
from lmcache_devkit import OpenableOffer
from lmcache_devkit.offer_under_test import installed_offer
from lmcache_policies.simulate.trace import Trace
from lmcache_policies.simulate.trace_file import read_trace

Prompts = Sequence[Sequence[int]]


def core_lru() -> EvictionPolicy:
    policy = OpenableOffer(installed_offer("eviction_policy", "LRU"), {}).open()
    assert isinstance(policy, EvictionPolicy)
    return policy


class Diary(EvictionPolicy):
    """First in first out, and records its calls."""

    def __init__(self) -> None:
        self.inserted: list[tuple[list[int], InsertFacts]] = []
        self.accessed: list[tuple[list[int], AccessFacts]] = []
        self.removed: list[list[int]] = []
        self.demands: list[EvictionDemand] = []
        self.order: dict[int, None] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        assert not set(slots) & set(self.order), "a slot that is in use was given out"
        self.inserted.append((list(slots), facts))
        self.order.update(dict.fromkeys(slots))

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self.accessed.append((list(slots), facts))

    def on_remove(self, slots: Sequence[int]) -> None:
        self.removed.append(list(slots))
        for slot in slots:
            del self.order[slot]

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        self.demands.append(demand)
        wanted = [slot for slot in self.order if may_evict(slot)]
        return wanted[: demand.any_bytes // self.inserted[0][1].slot_bytes]


class Hoarder(Diary):
    """Evicts nothing."""

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        return ()


class Blunderer(Diary):
    """Names a slot that was never filled."""

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        return (4711,)


@dataclass
class Catalog:
    """Installed policies by name."""

    policies: Mapping[str, Callable[..., EvictionPolicy]] = field(default_factory=lambda: {"LRU": core_lru})

    def offers(self, kind: str) -> Sequence[Offer]:
        assert kind == "eviction_policy"
        return [Offer(name, "", "") for name in sorted(self.policies)]

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        assert kind == "eviction_policy"
        if name not in self.policies:
            raise ConfigError(f"no eviction policy is called '{name}'")
        return self.policies[name](**settings)


def trace_of(tmp_path: Path, prompts: Prompts) -> Trace:
    """Those prompts, one a second."""
    return read_trace(str(write_prompts(tmp_path / "trace.jsonl", prompts)))


def write_prompts(path: Path, prompts: Prompts) -> Path:
    lines = [json.dumps({"timestamp": 1000 * at, "hash_ids": list(ids)}) for at, ids in enumerate(prompts)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
