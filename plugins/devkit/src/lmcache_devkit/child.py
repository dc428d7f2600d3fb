"""A process that stores objects until it is killed: `python -m lmcache_devkit.child`, its task on stdin.

It writes one line for each object that the adapter said was DONE, after the adapter said so."""

from __future__ import annotations

import json
import select
import sys
from dataclasses import dataclass
from typing import Any

from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, StoreItem
from lmcache_core.model.keys import ObjectKey, parse_canonical
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, payload_of
from lmcache_devkit.offer_under_test import OpenableOffer

BATCH = 4
READY = "ready"


@dataclass(frozen=True, slots=True)
class StoringTask:
    """Store objects `first`, `first + 1` ... of the space that `key` lies in, `count` of them."""

    opener: OpenableOffer
    key: ObjectKey
    first: int
    count: int
    payload_bytes: int

    def to_json(self) -> str:
        numbers = {"first": self.first, "count": self.count, "payload_bytes": self.payload_bytes}
        return json.dumps({"opener": self.opener.to_json(), "key": self.key.canonical.hex(), **numbers})

    @classmethod
    def from_json(cls, text: str) -> StoringTask:
        task: dict[str, Any] = json.loads(text)
        key = parse_canonical(bytes.fromhex(task.pop("key")))
        return cls(OpenableOffer.from_json(task.pop("opener")), key, **task)

    def item(self, number: int, memory: BorrowedMemory) -> StoreItem:
        key = ObjectKey(self.key.space, number.to_bytes(32, "little"))
        return StoreItem(key, memory.sealed(key, payload_of(number, self.payload_bytes)))


def run(task: StoringTask) -> None:
    memory = BorrowedMemory((task.count + 1) * (task.payload_bytes + 3 * 4096))
    adapter: L2Adapter = task.opener.open(adapter_context(memory, name=task.opener.offer.name))
    numbers = range(task.first, task.first + task.count)
    batches = [numbers[at : at + BATCH] for at in range(0, task.count, BATCH)]
    items = [[task.item(number, memory) for number in batch] for batch in batches]
    _say(READY)
    waiting: dict[JobId, range] = {}
    poll = select.poll()
    poll.register(adapter.completions().fileno(), select.POLLIN)
    for batch, objects in zip(batches, items, strict=True):
        waiting[adapter.submit_store(objects)] = batch
        _report(adapter, waiting)
    while waiting:
        poll.poll()
        _report(adapter, waiting)
    sys.stdin.read()  # until the parent kills this process, or ends


def _report(adapter: L2Adapter, waiting: dict[JobId, range]) -> None:
    for completion in adapter.completions().drain():
        if isinstance(completion, JobDone):
            done = zip(waiting.pop(completion.job), completion.outcomes, strict=True)
            _say(*(str(number) for number, outcome in done if outcome is Outcome.DONE))


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    run(StoringTask.from_json(sys.stdin.readline()))
