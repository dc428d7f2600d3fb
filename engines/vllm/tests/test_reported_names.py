"""The scheduler looks up under the name that the workers report."""

from __future__ import annotations

import pytest

from engines.vllm.tests.scheduler_rig import CHUNK, PROMPT, Rig
from engines.vllm.tests.worker_kit import fused_hnd
from lmcache_vllm.metadata import WorkerReport
from lmcache_vllm.placement import Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.worker import WorkerSide


def report(*names: str) -> WorkerReport:
    return WorkerReport({}, model_names=frozenset(names))


def test_requests_wait_for_the_name() -> None:
    """The first ones of an engine find what another engine stored."""
    rig = Rig(model_name="")
    rig.store(PROMPT, 2 * CHUNK)
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (None, False)
    assert not rig.server.keys, "no lookup has no name"
    rig.step()
    rig.side.on_worker_results(report("m##1"), ())
    assert rig.side.matched_tokens("r", 0) == (2 * CHUNK, True)
    assert [key.model_name for key in rig.server.keys] == ["m##1"]


def test_the_wait_ends_with_the_timeout_of_lookups() -> None:
    rig = Rig(model_name="")
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.now += 0.3
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert rig.side.take_counts() == {"failed_lookups:timeout": 1}
    assert rig.step(0, 32).stores, "workers know the name"


def test_without_a_server_no_request_waits() -> None:
    rig = Rig(model_name="")
    rig.server.server = None
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (0, False)


@pytest.mark.parametrize("reports", [[report("m##1", "m##2")], [report("m##1"), report("m##2")]])
def test_nothing_is_cached_where_workers_differ(reports: list[WorkerReport], caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(model_name="")
    for _ in range(2):
        for each in reports:
            rig.side.on_worker_results(each, ())
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert not rig.server.keys
    assert not rig.step(0, 32).stores
    assert caplog.text.count("nothing is cached: the workers of this engine call its KV cache m##1 and m##2") == 1


def test_reports_of_workers_add_up() -> None:
    both = WorkerReport({1: 1}, model_names=frozenset({"m##1"})).aggregate(report("m##2"))
    assert both == WorkerReport({1: 1}, frozenset(), frozenset({"m##1", "m##2"}))


def test_a_worker_reports_its_name_once_without_a_transfer() -> None:
    paged = fused_hnd()
    side = WorkerSide(Settings(), Placement("m##1", 1, 0), paged.groups, paged.kv_layout)
    assert side.report() == report("m##1")
    assert side.report() is None
    side.close()
