"""The connector's counts as vLLM wants them: a line in its log, and counters at its `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from lmcache_vllm.stats import COUNTERS, split_label, summary

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PREFIX: Final = "vllm:lmcache_"


@dataclass
class NodeStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is not there to be checked
    """Counts of one interval, by name; they add up over workers and steps."""

    data: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> NodeStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not self.data


class NodePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # vLLM is not there to be checked
    """One counter for each name in COUNTERS, with the label `reason` where a count is divided by it."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: Mapping[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: metric_types[Counter](
                name=f"{PREFIX}{name}", documentation=f"{about}.", labelnames=[*labelnames, "reason"]
            )
            for name, about in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for label, amount in transfer_stats_data.items():
            name, reason = split_label(label)
            self._counters[name].labels(*labels, reason).inc(amount)
