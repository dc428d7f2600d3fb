"""`lmcache status` on one screen, of servers old and new, well and not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lmcache_tools.page import plain_page
from lmcache_tools.status_page import Sample, status_page

HEALTHY: dict[str, Any] = {
    "healthy": True,
    "reason": "",
    "server": {"version": "1.2", "uptime_seconds": 7500.0, "instance_id": "node-7", "engine_endpoint": "tcp://h:5555"},
    "l1": {
        "cached": 30,
        "held": 10,
        "quarantined": 0,
        "free": 60,
        "used_bytes": 4 * 2**30,
        "capacity_bytes": 10 * 2**30,
        "state_counts_add_up": True,
    },
    "chunks": {"lookups": 50, "requested": 1000, "hit": 400, "loaded_from_l2": 100, "stored": 600, "retrieved": 400},
    "quotas": {"largest": [{"cache_salt": "tenant-a", "limit_bytes": 2**30, "used_bytes": 2**29}]},
    "tenants": [{"cache_salt": "tenant-a", "hit_rate": 0.25, "lookups": 7, "requested_tokens": 70000}],
    "workers": [
        {"model_name": "llama", "identity": "9f86d0", "transport": "shared_memory", "silent_seconds": 3.0},
        {"model_name": "llama", "identity": "9f86d0", "transport": "shared_memory", "silent_seconds": 9.0},
        {"model_name": "llama", "identity": "", "transport": "inline", "silent_seconds": 1.0},
    ],
    "l2": [
        {
            "name": "fs",
            "healthy": True,
            "state": "serving",
            "usage": {"used_bytes": 2**20, "capacity_bytes": None, "objects": 12},
            "circuit": {"state": "closed", "retry_in_seconds": None},
        }
    ],
    "store": {"adapters": {"fs": {"waiting": 4, "in_flight": 2, "backlog_bytes": 3 * 2**20, "stored": 99}}},
    "plugins": [{"name": "fs", "status": "active", "error": None}],
    "events": {"subscribers": {"log": {"state": "ok", "dropped": {}, "last_error": ""}}},
    "threads": {"router": {"running": True, "restarts": 0, "last_error": None}},
}


def lines(status: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    earlier = None if before is None else Sample(before, 100.0)
    return list(plain_page(status_page(Sample(status, 110.0), earlier)))


def row(shown: list[str], first: str) -> list[str]:
    (found,) = [line.split() for line in shown if line.startswith(first)]
    return found


def test_a_healthy_server_in_use() -> None:
    shown = lines(HEALTHY)
    assert shown[0] == "healthy"
    assert "up 2 h 5 min" in shown[1]
    assert "[#########===" in row(shown, "L1 ")[1]
    assert "40.0 % of 10 GiB" in " ".join(row(shown, "L1 "))
    assert "40.0 % of the chunks asked for were hit, 10.0 % by way of L2" in shown
    assert row(shown, "tenant-a") == ["tenant-a", "512", "MiB", "1", "GiB", "50.0", "%", "7", "70,000", "25.0", "%"]
    assert row(shown, "llama  -") == ["llama", "-", "1", "inline", "1", "s"]
    assert row(shown, "llama  9f") == ["llama", "9f86d0", "2", "shared_memory", "9", "s"]
    assert row(shown, "fs ")[:4] == ["fs", "ok", "1", "MiB"]
    assert "6 (3 MiB)" in " ".join(row(shown, "fs "))
    assert shown[-1] == "no conditions: nothing is known to be wrong"


def test_an_l1_that_is_a_file_says_where_it_is() -> None:
    l1 = {"kind": "file", "file": "/mnt/nvme/lmcache-l1.slab", "capacity_bytes": 2**30, "backed_bytes": 2**30}
    shown = row(lines({"healthy": True, "l1": l1}), "slots:")
    assert "in /mnt/nvme/lmcache-l1.slab" in " ".join(shown)
    assert "memory" not in " ".join(shown)


def test_two_samples_make_rates() -> None:
    later = {**HEALTHY, "chunks": {**HEALTHY["chunks"], "lookups": 150, "requested": 1500, "hit": 900}}
    shown = lines(later, HEALTHY)
    assert row(shown, "lookups") == ["lookups", "150", "10.0"]
    assert "60.0 % of the chunks asked for were hit (100.0 % lately), 6.7 % by way of L2" in shown
    restarted = {**HEALTHY, "chunks": {**HEALTHY["chunks"], "lookups": 1}}
    assert row(lines(restarted, HEALTHY), "lookups") == ["lookups", "1", "-"]


def test_before_the_first_lookup_there_is_no_hit_rate() -> None:
    assert "no lookup has asked for a chunk yet" in lines({"chunks": {"requested": 0, "hit": 0}})


def test_conditions_are_named_with_what_to_do() -> None:
    full = {
        "name": "medium_full",
        "severity": "warning",
        "subject": "adapter fs",
        "reason": "no room",
        "remedy": "give it",
    }
    refused = {"name": "requests_refused", "severity": "info", "subject": "engine port", "reason": "6 were refused"}
    conditions = [{**full, "since": 1_700_000_000.0}, {**refused, "since": "?"}]
    ill = {**HEALTHY, "state": "degraded", "healthy": False, "reason": "adapter fs: no room", "conditions": conditions}
    shown = lines(ill)
    assert shown[0] == "DEGRADED: adapter fs: no room"
    assert row(shown, "fs ")[:2] == ["fs", "medium_full"]
    at = shown.index("conditions:")
    assert shown[at + 1].startswith("  warning medium_full since 2023-11-1")
    assert shown[at + 2 : at + 4] == ["    adapter fs: no room", "    give it"]
    assert shown[at + 4].startswith("  info requests_refused since ")
    assert shown[at + 5 :] == ["    engine port: 6 were refused"]


def test_an_older_server_says_healthy_or_not() -> None:
    assert lines({"healthy": False, "reason": "store is down"})[0] == "UNHEALTHY: store is down"
    assert lines({"healthy": True})[0] == "healthy"
    assert lines({})[0] == "health unknown"


def test_many_tenants_stay_on_one_screen() -> None:
    largest = [{"cache_salt": f"t{number:02}", "used_bytes": number} for number in range(30)]
    shown = lines({**HEALTHY, "quotas": {"largest": largest}, "tenants": []})
    assert row(shown, "t29")[0] == "t29"
    assert not [line for line in shown if line.startswith("t01")]
    assert "and 22 more: lmcache quota list" in shown


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*HEALTHY, "state", "conditions", "policies"), _JSON)))
def test_whatever_a_server_says_can_be_shown(status: dict[str, Any]) -> None:
    assert lines(status)
    assert lines(status, status)
