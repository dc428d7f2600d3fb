"""One object stored in an adapter, looked up, loaded and deleted, as a server does it, with the time of each."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lmcache_client.errors import LMCacheError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.open_l2 import open_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer, MemoryRegion
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check, seal
from lmcache_core.model.results import Outcome
from lmcache_tools.lone_context import lone_context
from lmcache_tools.number_layouts import NumberLayouts, as_numbers, lossy_serdes

ROUNDS: Final = 3
_CLOSE_SECONDS: Final = 5.0
_MODEL: Final = "lmcache-doctor"
"""Of the keys, so that what should ever be left behind says where they come from."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds are those of the fastest of several rounds, each with an object of `object_bytes`."""

    adapter: str
    object_bytes: int
    open_seconds: float
    store_seconds: float
    lookup_seconds: float
    load_seconds: float
    was_deleted: bool
    lossy: tuple[str, ...] = ()
    """Serdes that bring back other numbers than were stored: then what came back is whole, and was not compared."""
    capacity_bytes: int | None = None
    """As the adapter says; None without a limit, and where it does not say."""

    @property
    def load_bytes_per_second(self) -> float:
        return self.object_bytes / self.load_seconds


class TrialFailedError(LMCacheError):
    """An adapter did not do what it is for.  The message says which step, and how."""


def try_adapter(spec: AdapterSpec, plugins: LoadedPlugins, object_bytes: int, timeout_seconds: float) -> Trial:
    """Raises LMCacheError when it cannot be opened, and when a step fails or takes too long.  Deletes what it stored, as far
    as the adapter can."""
    memory = mmap.mmap(-1, 2 * object_bytes)
    region = _region(memory)
    try:
        started = time.perf_counter()
        layouts = NumberLayouts()
        adapter = open_spec(spec, plugins, lone_context(spec.name, _MODEL, region), layouts)
        opened = time.perf_counter() - started
        try:
            layouts.suit(spec.name, adapter, [object_bytes])
            return _rounds(_Talk(adapter, timeout_seconds), spec.name, region, object_bytes, opened)
        finally:
            adapter.close(_CLOSE_SECONDS)
    finally:
        with suppress(
            BufferError
        ):  # an adapter that does not release it keeps the memory as long as this process lives
            region.view.release()
            memory.close()


def _region(memory: mmap.mmap) -> MemoryRegion:
    anchor = ctypes.c_char.from_buffer(memory)
    return MemoryRegion(ctypes.addressof(anchor), len(memory), memoryview(memory))


class _Talk:
    """One job at a time, waited for."""

    def __init__(self, adapter: L2Adapter, timeout_seconds: float) -> None:
        self.adapter = adapter
        self._timeout_seconds = timeout_seconds
        self._done: dict[JobId, JobDone] = {}
        self._released: set[JobId] = set()

    def outcome(self, step: str, job: JobId) -> Outcome:
        """Of the one key of the job, once its buffers are back."""
        deadline = time.monotonic() + self._timeout_seconds
        while not (job in self._done and (self._done[job].released or job in self._released)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TrialFailedError(f"{step}: no answer within {self._timeout_seconds:g} s")
            select.select([self.adapter.completions().fileno()], [], [], left)
            for completion in self.adapter.completions().drain():
                if isinstance(completion, BuffersReleased):
                    self._released.add(completion.job)
                else:
                    self._done[completion.job] = completion
        return self._done[job].outcomes[0]

    def timed(self, step: str, job: JobId, started: float) -> float:
        outcome = self.outcome(step, job)
        if outcome is not Outcome.DONE:
            raise TrialFailedError(f"{step}: {outcome.value}")
        return time.perf_counter() - started


def _rounds(talk: _Talk, name: str, region: MemoryRegion, object_bytes: int, opened: float) -> Trial:
    source, target = (BorrowedBuffer(region, start, object_bytes) for start in (0, object_bytes))
    lossy = lossy_serdes(talk.adapter)
    noise = os.urandom(object_bytes - HEADER_BYTES)
    source.view[HEADER_BYTES:] = as_numbers(noise) if lossy else noise
    times: list[tuple[float, float, float]] = []
    deleted = True
    for _ in range(ROUNDS):
        key = ObjectKey(_space(), secrets.token_bytes(32))
        seal(source.view, key, time.time_ns())
        try:
            times.append(_round(talk, key, source, target, lossy=bool(lossy)))
        finally:
            deleted = _deleted(talk, key) and deleted
    store, lookup, load = (min(column) for column in zip(*times, strict=True))
    usage = talk.adapter.usage()
    capacity = usage.capacity_bytes if usage else None
    return Trial(name, object_bytes, opened, store, lookup, load, deleted, lossy, capacity)


def _round(
    talk: _Talk, key: ObjectKey, source: BorrowedBuffer, target: BorrowedBuffer, *, lossy: bool
) -> tuple[float, float, float]:
    adapter = talk.adapter
    started = time.perf_counter()
    store = talk.timed("store", adapter.submit_store([StoreItem(key, source)]), started)
    started = time.perf_counter()
    lookup = talk.timed("lookup", adapter.submit_lookup([key]), started)
    try:
        started = time.perf_counter()
        load = talk.timed("load", adapter.submit_load([LoadItem(key, target)]), started)
    finally:
        adapter.unpin([key])
    found = check(target.view, key)
    if found.outcome is not Outcome.DONE or not (lossy or target.view == source.view):
        raise TrialFailedError(f"load: other bytes came back than were stored ({found.outcome.value})")
    return store, lookup, load


def _deleted(talk: _Talk, key: ObjectKey) -> bool:
    if Capability.DELETE not in talk.adapter.capabilities:
        return False
    with suppress(TrialFailedError):
        return talk.outcome("delete", talk.adapter.submit_delete([key])) in (Outcome.DONE, Outcome.MISSING)
    return False


def _space() -> KeySpace:
    return KeySpace(_MODEL, 0, 0, "", 256, HashChain.BLAKE3, b"doctor-trial-run")
