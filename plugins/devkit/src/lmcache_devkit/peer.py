"""Another server's process on the same backend: `python -m lmcache_devkit.peer`, orders on stdin, outcomes on stdout.

Two adapters of one process may share what their backend's library keeps for the process; two processes do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from lmcache_core.model.keys import ObjectKey, parse_canonical
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, payload_of
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES, assert_right
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.offer_under_test import OpenableOffer

CLOSE_SECONDS: Final = 10.0


class Peer:
    """Works on the objects of a rig, which are called by their numbers.  A context manager; one thread.  Raises AssertionError,
    with what the process has said, when it has ended by itself."""

    def __init__(self, opener: OpenableOffer, key: ObjectKey) -> None:
        """`key` says in which space the objects are."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "lmcache_devkit.peer"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._say({"opener": opener.to_json(), "key": key.canonical.hex()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._child as child:
            if kind is not None:
                child.kill()
            elif child.stdin is not None:
                child.stdin.close()
                try:
                    child.wait(2 * CLOSE_SECONDS)
                finally:
                    child.kill()

    def has(self, *numbers: int) -> tuple[Outcome, ...]:
        return self._order("has", numbers)

    def store(self, *numbers: int) -> tuple[Outcome, ...]:
        return self._order("store", numbers)

    def load(self, *numbers: int) -> tuple[Outcome, ...]:
        """What is DONE was the right object, byte for byte."""
        return self._order("load", numbers)

    def delete(self, *numbers: int) -> tuple[Outcome, ...]:
        return self._order("delete", numbers)

    def _order(self, verb: str, numbers: Sequence[int]) -> tuple[Outcome, ...]:
        self._say({"verb": verb, "numbers": numbers})
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        if not (line := self._child.stdout.readline()):
            raise AssertionError(f"the other process has ended by itself: {self._child.stderr.read()[-800:]}")
        return tuple(Outcome(value) for value in json.loads(line))

    def _say(self, words: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(words) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # its end is reported where its answer is missed


def run(opener: OpenableOffer, key: ObjectKey) -> None:
    """In the other process: until stdin ends."""
    memory = BorrowedMemory()
    driver = L2Driver(opener.open(adapter_context(memory, name=opener.offer.name)))

    def load(*keys: ObjectKey) -> tuple[Outcome, ...]:
        items = [(key, memory.lend(OBJECT_BYTES)) for key in keys]
        outcomes = driver.load(*items)
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome is Outcome.DONE:
                assert_right(*item)
        return outcomes

    def store(*keys: ObjectKey) -> tuple[Outcome, ...]:
        numbers = [int.from_bytes(key.chunk_hash, "little") for key in keys]
        return driver.store(
            *((key, memory.sealed(key, payload_of(n, PAYLOAD_BYTES))) for n, key in zip(numbers, keys, strict=True))
        )

    verbs: dict[str, Callable[..., tuple[Outcome, ...]]] = {
        "has": driver.has, "store": store, "load": load, "delete": driver.delete,
    }  # fmt: skip
    for line in sys.stdin:
        order = json.loads(line)
        keys = [ObjectKey(key.space, number.to_bytes(32, "little")) for number in order["numbers"]]
        sys.stdout.write(json.dumps([outcome.value for outcome in verbs[order["verb"]](*keys)]) + "\n")
        sys.stdout.flush()
    driver.close(CLOSE_SECONDS)


if __name__ == "__main__":
    task = json.loads(sys.stdin.readline())
    run(OpenableOffer.from_json(task["opener"]), parse_canonical(bytes.fromhex(task["key"])))
