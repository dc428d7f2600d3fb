"""What `/status` says of a small server, as far as the dashboard reads it."""

from __future__ import annotations

from typing import Any


def status(**changes: Any) -> dict[str, Any]:
    queue = {"state": "ok", "waiting": 0, "dropped": {"StoresDropped": 2, "LookupFinished": 1}, "failed": 0}
    running = {"running": True, "restarts": 0, "last_error": None}
    return {
        "state": "healthy",
        "healthy": True,
        "conditions": [],
        "reason": "",
        "server": {"uptime_seconds": 5.0},
        "chunks": {"requested": 8, "hit_l1": 4, "loaded_from_l2": 2, "refused": 3},
        "l1": {"capacity_bytes": 100, "used_bytes": 50, "cached": 4, "held": 1, "quarantined": 0, "evicted": 7},
        "policies": {"eviction": "LRU"},
        "l2": [],
        "quotas": {"largest": []},
        "tenants": [],
        "plugins": [{"name": "acme", "version": "1", "status": "in_use", "error": None}],
        "events": {"subscribers": {"metrics": queue}},
        "workers": [{"instance_id": 2**60 + 1, "model_name": "m", "world_size": 1, "silent_seconds": 0.5}],
        "threads": {
            "store": running,
            "reaper": {**running, "running": False},
            "router": {"running": False, "restarts": 3, "last_error": "RuntimeError"},
        },
    } | changes
