"""Three tenants at 50, 100 and 300 % of their quotas: only the third loses objects, also where members do not delete."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fleet.test_two_servers import CHUNKS, GIB, NO_DELETES, OBJECT_BYTES, Fleet, eventually, wait_for

INTERVAL_SECONDS = 3.0
INTERVALS = 3
QUOTA = 2 * CHUNKS
PROMPTS = {"half": (1,), "full": (2, 3), "over": (4, 5, 6, 7, 8, 9)}


def stored(fleet: Fleet) -> dict[str, int]:
    for salt, prompts in PROMPTS.items():
        fleet.store(0, salt, *prompts)
    sizes = {salt: len(prompts) * CHUNKS * OBJECT_BYTES for salt, prompts in PROMPTS.items()}
    eventually(fleet.usage, sizes)
    return sizes


def set_quotas(fleet: Fleet) -> None:
    for salt in PROMPTS:
        quota = {"limit_gb": QUOTA * OBJECT_BYTES / GIB}
        assert fleet.coordinator.ask("PUT", f"/l2/quota/{salt}", quota).status == 200


@pytest.mark.parametrize(
    ("users", "frozen"),
    [(("", ""), None), pytest.param(("", f"{NO_DELETES}:x@", ""), 2, marks=pytest.mark.slow)],
    ids=["all-delete", "one-refuses-and-one-hangs"],
)
def test_only_who_is_over_its_quota_loses_objects(users: Sequence[str], frozen: int | None, tmp_path: Path) -> None:
    with ExitStack() as stack:
        flags = ("--eviction-check-interval", str(INTERVAL_SECONDS), "--instance-timeout", "600")
        fleet = Fleet(tmp_path, stack, *flags, users=users)
        sizes = stored(fleet)
        if frozen is not None:
            os.kill(fleet.servers[frozen].pid, signal.SIGSTOP)
            stack.callback(os.kill, fleet.servers[frozen].pid, signal.SIGCONT)
        set_quotas(fleet)
        wait_for(lambda: fleet.usage()["over"] <= QUOTA * OBJECT_BYTES, fleet.usage, INTERVALS * INTERVAL_SECONDS)
        assert fleet.usage() == {**sizes, "over": QUOTA * OBJECT_BYTES}, "and no more than that"
        eventually(fleet.in_redis, sum(fleet.usage().values()) // OBJECT_BYTES)
