"""What was stored outlives the adapter, and the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Final

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.child import READY, StoringTask
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig

DONE, MISSING = Outcome.DONE, Outcome.MISSING
CHILD_OBJECTS: Final = 300
CHILD_PAYLOAD_BYTES: Final = 50_000
KILL_AFTER_OBJECTS: Final = (0, 9, 60)
"""Numbers of reported objects after which a child is killed, up to `JITTER_SECONDS` later."""
JITTER_SECONDS: Final = 0.01


class Durability(L2Fixtures):
    def test_what_was_stored_is_found_after_closing_and_opening_again(self, rig: Rig) -> None:
        rig.require(Capability.DURABLE)
        keys = rig.put(10)
        if Capability.DELETE in rig.capabilities:
            rig.driver.delete(*keys[5:])
            keys, gone = keys[:5], keys[5:]
            rig.reopen()
            assert rig.driver.has(*gone) == (MISSING,) * len(gone)
        else:
            rig.reopen()
        rig.assert_whole(*keys)
        if Capability.LIST in rig.capabilities:
            assert set(rig.own(rig.driver.keys(100))) == set(keys)

    def test_usage_is_the_same_after_closing_and_opening_again(self, rig: Rig) -> None:
        rig.require(Capability.DURABLE | Capability.USAGE)
        rig.put(6)
        assert rig.stored() == (6, 6 * OBJECT_BYTES)
        rig.reopen()
        assert rig.stored() == (6, 6 * OBJECT_BYTES)

    def test_what_was_done_survives_a_kill_and_nothing_is_torn(self, rig: Rig) -> None:
        """A child process stores, and is killed at a moment of chance; then the backend is opened again."""
        rig.require_stores()
        rig.require(Capability.DURABLE)
        rig.driver.close(self.wait_seconds)
        first = 0
        for kill_after in KILL_AFTER_OBJECTS:
            done = _store_and_be_killed(rig, first, kill_after)
            driver = rig.driver = rig.open()
            keys = rig.keys(CHILD_OBJECTS, first)
            driver.stored.update((key.object_id, key) for key in keys)
            there = [key for key, now in zip(keys, driver.has(*keys), strict=True) if now is DONE]
            lost = [number for number in done if rig.key(number) not in there]
            assert not lost, f"{len(lost)} of {len(done)} objects that were DONE before the kill are gone: {lost[:5]}"
            rig.assert_whole(*there, payload_bytes=CHILD_PAYLOAD_BYTES)
            if Capability.USAGE in rig.capabilities:
                assert rig.stored() == (len(there), len(there) * (HEADER_BYTES + CHILD_PAYLOAD_BYTES))
            if Capability.DELETE in rig.capabilities:
                assert driver.delete(*there) == (DONE,) * len(there)
                assert Capability.USAGE not in rig.capabilities or rig.stored() == (0, 0)
            driver.close(self.wait_seconds)
            first += CHILD_OBJECTS


def _store_and_be_killed(rig: Rig, first: int, kill_after: int) -> list[int]:
    """The numbers of the objects that the child said were DONE before it died."""
    task = StoringTask(rig.under_test, rig.key(0), first, CHILD_OBJECTS, CHILD_PAYLOAD_BYTES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(
        [sys.executable, "-m", "lmcache_devkit.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        child.stdin.write(task.to_json() + "\n")
        child.stdin.flush()
        lines: list[str] = []
        while len(lines) <= kill_after:
            line = child.stdout.readline().strip()
            if not line:
                child.kill()
                raise AssertionError(f"the storing process has ended by itself: {child.stderr.read()[-800:]}")
            lines.append(line)
        time.sleep(random.uniform(0, JITTER_SECONDS))
        child.kill()
        lines += child.stdout.read().split("\n")
    return [int(line) for line in lines if line and line != READY]
