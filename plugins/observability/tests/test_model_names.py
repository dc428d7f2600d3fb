"""Series and spans have the served name: requests may have any number of whole names."""

from __future__ import annotations

from lmcache_core import ChunksRetrieved, ChunksStored, WorkerLeft
from lmcache_observability.dashboard.recent_events import RecentEvents
from lmcache_observability.metrics.distributions import Distributions
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.request_traces import RequestTraces
from lmcache_observability.tracing.steps import model_attributes, step_of

IDENTITY = "9f86d081884c7d65"
NAMES = [f"m##{IDENTITY}%%{number:016x}" for number in range(1000)]


def test_spans_say_the_parts_apart() -> None:
    assert model_attributes("m") == {"lmcache.model": "m"}
    said = {"lmcache.model": "m", "lmcache.model_identity": f"{IDENTITY} {1:016x}"}
    assert model_attributes(NAMES[1]) == said
    assert said.items() <= dict(step_of(ChunksStored(NAMES[1], "", 0, 1, 10)).attributes).items()


def test_any_number_of_adapters_is_one_series() -> None:
    distributions = Distributions(LabelNames(16, "hashed"), RequestTraces(enabled=False))
    for name in NAMES:
        distributions.handlers[ChunksStored](ChunksStored(name, "", 0, 1, 10, seconds=0.1))
        distributions.handlers[ChunksRetrieved](ChunksRetrieved(name, "", 0, 1, 10, seconds=0.1))
    series = [labels for family in distributions.families() for labels, _ in family.distributions]
    assert series == [("m",)] * 4


def test_the_dashboard_says_both() -> None:
    recent = RecentEvents()
    recent.subscriptions()[WorkerLeft](WorkerLeft(1, f"m##{IDENTITY}", "silent"))
    assert [each.text for each in recent.latest()] == [f"worker 1: m ({IDENTITY}), silent"]
