"""A coordinator that was killed, with its state and without it: who loses objects."""

from __future__ import annotations

import time
from pathlib import Path

from tests.fleet.test_two_servers import CHUNKS, GIB, OBJECT_BYTES, Fleet, eventually, fleet, wait_for

__all__ = ["fleet"]  # the fixture

QUOTA_OBJECTS = {"half": 2 * CHUNKS, "full": CHUNKS, "over": 2 * CHUNKS}
INTERVALS = 6
INTERVAL_SECONDS = 0.5


def conditions(fleet: Fleet) -> dict[str, str]:
    """Reasons by name."""
    return {each["name"]: each["reason"] for each in fleet.coordinator.ask("GET", "/conditions").body["conditions"]}


def test_a_lost_state_evicts_nothing_and_a_kept_one_only_who_is_over(fleet: Fleet, tmp_path: Path) -> None:
    coordinator = fleet.coordinator
    for salt, prompts in {"half": (1,), "full": (2,), "over": (3, 4)}.items():
        fleet.store(0, salt, *prompts)
    sizes = {"half": CHUNKS * OBJECT_BYTES, "full": CHUNKS * OBJECT_BYTES, "over": 2 * CHUNKS * OBJECT_BYTES}
    eventually(fleet.usage, sizes)
    for salt, objects in QUOTA_OBJECTS.items():
        assert coordinator.ask("PUT", f"/l2/quota/{salt}", {"limit_gb": objects * OBJECT_BYTES / GIB}).status == 200

    # Its state is gone: no tenant has a quota, and none loses anything, although a salt without a quota has 0 bytes.
    coordinator.kill()
    kept = {path: path.read_bytes() for path in tmp_path.glob("state.db*")}
    for path in kept:
        path.unlink()
    coordinator.start()
    eventually(fleet.usage, sizes)
    wait_for(lambda: coordinator.ask("GET", "/conditions").body["leader"], lambda: "no leader")
    time.sleep(INTERVALS * INTERVAL_SECONDS)
    assert fleet.usage() == sizes
    assert fleet.in_redis() == 4 * CHUNKS
    assert "nothing is evicted" in conditions(fleet)["no_quota_was_set"]

    # Its state is back: the same quotas, and only the tenant that goes over its own loses objects.
    coordinator.kill()
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    coordinator.start()
    eventually(fleet.usage, sizes)
    limits = {
        each["cache_salt"]: each["quota_limit_gb"]
        for each in coordinator.ask("GET", "/l2/status").body["by_cache_salt"]
    }
    assert {salt: round(limit * GIB) for salt, limit in limits.items()} == {
        salt: objects * OBJECT_BYTES for salt, objects in QUOTA_OBJECTS.items()
    }
    assert "no_quota_was_set" not in conditions(fleet)
    fleet.store(0, "over", 5)
    log = coordinator.log
    wait_for(lambda: "objects over quota are deleted" in log.read_text(), log.read_text)
    kept_sizes = {**sizes, "over": 2 * CHUNKS * OBJECT_BYTES}
    wait_for(lambda: fleet.usage() == kept_sizes, lambda: (fleet.usage(), fleet.in_redis(), log.read_text()))
    eventually(fleet.in_redis, sum(kept_sizes.values()) // OBJECT_BYTES)
