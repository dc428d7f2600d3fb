"""What the dashboard shows, from what the server says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lmcache_core import Sample
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.dashboard.recent_events import Happened
from lmcache_observability.dashboard.snapshot import snapshot
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.history import FIGURES, Moment
from lmcache_observability.tracing.slowest import SlowRequest
from lmcache_observability.tracing.steps import Step
from plugins.observability.tests.dashboard.status import status


def shown(
    samples: Sequence[Sample] = (),
    ceilings: Sequence[Ceiling] = (),
    moments: Sequence[Moment] = (),
    slow: Sequence[SlowRequest] = (),
    happened: Sequence[Happened] = (),
    missing: Sequence[str] = (),
    **said: Any,
) -> dict[str, Any]:
    """As its page reads it."""
    taken = snapshot(FakeServerView(said=status(**said)), samples, ceilings, moments, slow, happened, missing)
    decoded: dict[str, Any] = json.loads(json.dumps(taken))
    return decoded


def test_what_is_unknown_is_null_and_named() -> None:
    taken = shown(missing=["metrics"])
    assert taken["missing"] == ["metrics"]
    assert (taken["hit_rate"]["actual"], taken["hit_rate"]["ceiling"], taken["hit_rate"]["history"]) == (None, None, [])
    assert (taken["traffic"]["lookups_per_second"], taken["traffic"]["slowest_seconds"]) == (None, None)
    assert shown(chunks={"requested": 0, "hit_l1": 0, "loaded_from_l2": 0, "refused": 0})["served"] == {
        "l1": None,
        "l2": None,
    }


def test_shares_are_of_the_chunks_that_were_asked_for() -> None:
    assert shown()["served"] == {"l1": 0.5, "l2": 0.25}


def test_the_hit_rate_is_that_of_the_shortest_window_with_lookups() -> None:
    ceilings = [
        Ceiling("", "5m", 4.0, 0.1, 0.2),
        Ceiling(ALL, "1h", 4.0, 0.3, 0.4),
        Ceiling(ALL, "start", 4.0, 0.5, 0.6),
    ]
    rate = shown(ceilings=ceilings)["hit_rate"]
    assert (rate["window"], rate["actual"], rate["ceiling"]) == ("last hour", 0.3, 0.4)
    rate = shown(ceilings=[Ceiling(ALL, "5m", 4.0, 0.7, 0.8), *ceilings])["hit_rate"]
    assert (rate["window"], rate["actual"]) == ("last 5 minutes", 0.7)


def test_curves_have_their_figures() -> None:
    names = [figure.name for figure in FIGURES]
    moment = Moment(9.0, tuple(float(number) for number in range(len(names))))
    taken = shown(moments=[moment])
    assert taken["hit_rate"]["history"] == [
        {"at": 9.0, "actual": names.index("recent_hit_ratio"), "ceiling": names.index("recent_hit_ratio_ceiling")}
    ]
    (point,) = taken["traffic"]["history"]
    assert point["loaded"] == names.index("l2_read_bytes_per_second")
    assert taken["traffic"]["lookups_per_second"] == names.index("lookups_per_second")


def test_an_adapter_has_its_own_figures() -> None:
    adapter = {"name": "s3", "type": "s3", "state": "serving", "healthy": True, "circuit": None, "jobs_in_flight": 2}
    other = {**adapter, "name": "fs", "healthy": False, "circuit": {"state": "open"}}
    samples = [
        Sample("lmcache_mp.l2_usage_bytes", 10.0, ("s3",)),
        Sample("lmcache_mp.l2_usage_bytes", 20.0, ("fs",)),
        Sample("lmcache.l2.store.ended", 5.0, ("fs", "stored")),
        Sample("lmcache.l2.store.ended", 1.0, ("fs", "failed")),
    ]
    s3, fs = shown(samples, l2=[adapter, other])["adapters"]
    assert (s3["used_bytes"], s3["stored"], s3["failed"], s3["state"], s3["circuit"]) == (10, None, 0, "serving", None)
    assert (fs["used_bytes"], fs["stored"], fs["failed"], fs["state"], fs["circuit"]) == (20, 5, 1, "degraded", "open")


def test_conditions_are_those_of_the_status() -> None:
    full = {"name": "medium_full", "severity": "warning", "subject": "adapter fs", "reason": "no room", "since": 9.0}
    taken = shown(state="degraded", reason="adapter fs: no room", conditions=[full])
    assert (taken["server"]["state"], taken["server"]["reason"]) == ("degraded", "adapter fs: no room")
    assert taken["conditions"] == [full]
    assert shown()["conditions"] == []


def test_tenants_are_those_that_ask_and_those_that_use() -> None:
    asks = {"cache_salt": "a", "lookups": 3, "hit_rate": 0.25, "hit_l1_tokens": 1, "hit_l2_tokens": 2}
    uses = {"cache_salt": "_default", "used_bytes": 9, "limit_bytes": None}
    a, default = shown(
        ceilings=[Ceiling("", "start", 4.0, 0.5, 0.75), Ceiling("", "1h", 4.0, 0.1, 0.2)],
        tenants=[asks],
        quotas={"largest": [uses]},
    )["tenants"]
    assert (a["salt"], a["hit_rate"], a["ceiling"], a["used_bytes"]) == ("a", 0.25, None, 0)
    assert (default["salt"], default["hit_rate"], default["ceiling"], default["used_bytes"]) == (
        "_default",
        0.5,
        0.75,
        9,
    )


def test_steps_begin_with_their_request() -> None:
    steps = [Step("lmcache.load", 12.0, 13.0, {"db.namespace": "s3"}), Step("lmcache.lookup", 10.0, 11.0, {})]
    (taken,) = shown(slow=[SlowRequest("r", 255, "m", "", 14.0, 2.0, steps)])["slow_requests"]
    assert [(each["name"], each["offset_seconds"], each["seconds"]) for each in taken["spans"]] == [
        ("lookup", 0.0, 1.0),
        ("load (s3)", 2.0, 1.0),
    ]
    assert (taken["span_seconds"], taken["trace_id"]) == (3.0, f"{255:032x}")
    (without,) = shown(slow=[SlowRequest("r", 1, "m", "", 14.0, 2.0, [])])["slow_requests"]
    assert (without["spans"], without["span_seconds"]) == ([], 0.0)


def test_numbers_that_browsers_cannot_hold_are_text() -> None:
    assert shown()["workers"][0]["instance_id"] == str(2**60 + 1)


def test_threads_and_subscribers_say_how_they_are() -> None:
    taken = shown()
    assert {each["name"]: each["state"] for each in taken["threads"]} == {
        "store": "running",
        "reaper": "done",
        "router": "down",
    }
    assert [(each["name"], each["dropped"]) for each in taken["subscribers"]] == [("metrics", 3)]
    assert taken["plugins"][0]["error"] == ""
