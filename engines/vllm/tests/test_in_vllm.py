"""What only vLLM itself can answer: that it finds the connector, and that the connector fits."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment

_ASK = """
import inspect, json, logging, pickle
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("lmcache_vllm").addHandler(handler)

from vllm.plugins import load_general_plugins
load_general_plugins()
from lmcache_vllm.registration import NAME, register
register()
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma
found = KVConnectorFactory.get_connector_class_by_name(NAME)
own = {name for name, value in vars(found).items() if not name.startswith("_") and not name.startswith("__")}

KVConnectorFactory._registry[NAME] = lambda: KVConnectorBase_V1
register()
del KVConnectorFactory.register_connector
register()

from types import SimpleNamespace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from lmcache_vllm.metrics import NodeStats
registry = CollectorRegistry()
kinds = {kind: (lambda kind: lambda **given: kind(registry=registry, **given))(kind) for kind in (Counter, Gauge, Histogram)}
metrics = found.build_prom_metrics(SimpleNamespace(kv_transfer_config=None), kinds, ["engine"], {0: ["0"]})
metrics.observe({"lookups": 3, "failed_lookups:timeout": 2})
stats = pickle.loads(pickle.dumps(NodeStats({"lookups": 1, "load_bytes": 4e9, "load_seconds": 2.0})))
stats = stats.aggregate(found.build_kv_connector_stats({"lookups": 2, "failed_loads:missing": 1}))

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.core.sched.output import CachedRequestData, KVConnectorBlockState, NewRequestData, SchedulerOutput
from lmcache_vllm.adapter_contents import AdapterContents
from lmcache_vllm.engine_facts import request_facts, step_facts
params = SamplingParams(max_tokens=2, extra_args={"kv_transfer_params": {"lmcache.tag": "x"}})
request = Request("r", [1, 2, 3], params, None, cache_salt="tenant")
facts = request_facts(request, AdapterContents())
request.append_output_token_ids(9)

output = SchedulerOutput.make_empty()
output.scheduled_new_reqs = [NewRequestData("new", [1, 2, 3], [], None, None, ([4, 5],), 1, None)]
output.scheduled_cached_reqs = CachedRequestData(
    req_ids=["old", "grown", "again"], resumed_req_ids={"again"}, new_token_ids=[], all_token_ids={},
    new_block_ids=[None, ([6],), ([7, 8],)], num_computed_tokens=[5, 6, 7], num_output_tokens=[0, 0, 0],
)
output.num_scheduled_tokens = {"new": 2, "old": 1}
output.kv_connector_block_state = KVConnectorBlockState({"new"}, {"new": ([4, 5],)}.get, {})
step = step_facts(output)

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from lmcache_vllm.metadata import WorkerReport
reports = []
other = SimpleNamespace(build_connector_worker_meta=lambda: None, update_connector_output=lambda output: None)
def beside_another(own):
    multi = object.__new__(MultiConnector)
    multi._connectors = [other, own]
    return multi
def output_of(name):
    worker = object.__new__(found)
    worker._worker = SimpleNamespace(report=lambda: WorkerReport({}, model_names=frozenset({name})))
    meta = beside_another(worker).build_connector_worker_meta()
    output = ModelRunnerOutput.with_kv_conn_output_only(KVConnectorOutput(kv_connector_worker_meta=meta))
    return pickle.loads(pickle.dumps(output))
scheduler = object.__new__(found)
scheduler._worker = None
scheduler._scheduler = SimpleNamespace(on_worker_results=lambda report, _: reports.append(sorted(report.model_names)))
for names in (["m##1", "m##1"], ["m##1", "m##2"]):
    combined = KVOutputAggregator(2).aggregate([output_of(name) for name in names])
    beside_another(scheduler).update_connector_output(combined.kv_connector_output)

print("RESULT", json.dumps({
    "reports": reports,
    "class": f"{found.__module__}.{found.__qualname__}",
    "abstract": sorted(found.__abstractmethods__),
    "hma": supports_hma(found),
    "unknown": sorted(name for name in own if not hasattr(KVConnectorBase_V1, name) and name != "request_finished_all_groups"),
    "signatures": sorted(
        name for name in own
        if inspect.isfunction(getattr(found, name)) and hasattr(KVConnectorBase_V1, name)
        and list(inspect.signature(getattr(found, name)).parameters)
        != list(inspect.signature(getattr(KVConnectorBase_V1, name)).parameters)
    ),
    "warnings": lines,
    "shown": stats.reduce(),
    "lookups": registry.get_sample_value("vllm:lmcache_lookups_total", {"engine": "0", "reason": ""}),
    "timeouts": registry.get_sample_value("vllm:lmcache_failed_lookups_total", {"engine": "0", "reason": "timeout"}),
    "step": [step.scheduled, step.block_table("new"), sorted(step.preempted), step.new_blocks],
    "facts": [list(facts.tokens), facts.prompt_tokens, facts.cache_salt, facts.configs, facts.skip_reason],
}))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    if not ENGINE_PYTHON.exists():
        pytest.skip("no engine environment here: run `make setup`")
    answer = subprocess.run(
        [str(ENGINE_PYTHON), "-c", _ASK], capture_output=True, text=True, env=quiet_environment(), check=False
    )
    line = next((line for line in answer.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line, answer.stderr
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return found


@pytest.mark.engine
@pytest.mark.slow
def test_vllm_finds_the_connector(said: dict[str, Any]) -> None:
    assert said["class"] == "lmcache_vllm.connector.LMCacheNodeConnector"


@pytest.mark.engine
def test_the_connector_is_what_vllm_calls(said: dict[str, Any]) -> None:
    by_our_worker = ["bind_model_runner"]
    assert (said["abstract"], said["unknown"], said["signatures"], said["hma"]) == ([], by_our_worker, [], True)


@pytest.mark.engine
def test_a_name_that_is_taken_and_a_vllm_that_is_another_one_are_warnings(said: dict[str, Any]) -> None:
    taken, other = said["warnings"]
    assert "has taken its name" in taken
    assert "registers connectors in another way" in other


@pytest.mark.engine
def test_counts_come_out(said: dict[str, Any]) -> None:
    assert said["shown"] == {"lookups": 3, "load_bytes": 4_000_000_000, "failed_loads": 1, "load_gb_per_second": 2.0}
    assert (said["lookups"], said["timeouts"]) == (3.0, 2.0)


@pytest.mark.engine
def test_requests_look_as_expected(said: dict[str, Any]) -> None:
    assert said["facts"] == [[1, 2, 3, 9], 3, "tenant", {"lmcache.tag": "x"}, ""]


@pytest.mark.engine
def test_steps_look_as_expected(said: dict[str, Any]) -> None:
    scheduled, table, preempted, new_blocks = said["step"]
    assert (scheduled, table, preempted) == ({"new": [1, 2], "old": [5, 1]}, [[4, 5]], [])
    assert new_blocks == [[1, [[4, 5]]], [0, [[6]]], [7, [[7, 8]]]]


@pytest.mark.engine
def test_names_of_workers_reach_the_scheduler_beside_other_connectors(said: dict[str, Any]) -> None:
    """In a step without any transfer and without a forward pass."""
    assert said["reports"] == [["m##1"], ["m##1", "m##2"]]
