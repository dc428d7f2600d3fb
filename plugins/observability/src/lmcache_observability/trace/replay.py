"""`lmcache trace replay`"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from lmcache_core import ConfigError
from lmcache_observability.trace.reader import TraceReader
from lmcache_observability.trace.replay_engine import Prompt, ReplayEngine
from lmcache_observability.trace.replay_outcome import ReplayOutcome
from lmcache_observability.trace.replay_plan import AskStep, EndStep, ReplayPlan, StoreStep, plan_replay
from lmcache_observability.trace.replay_server import replay_server

_PROGRESS_SECONDS: Final = 1.0


def run_replay(given: Namespace, server_flags: Sequence[str]) -> int:
    """1: the server returned a wrong byte."""
    if given.engine and server_flags:
        raise ConfigError("--engine names a server that runs already; leave out the flags behind `--`")
    plan = plan_replay(given.file, TraceReader(given.file), given.max_requests)
    sizes = {model: given.chunk_bytes or size for model, size in plan.chunk_bytes.items()}
    with ExitStack() as stack:
        endpoint = given.engine or stack.enter_context(replay_server(server_flags, plan.chunk_tokens))
        engine = stack.enter_context(ReplayEngine(endpoint, plan.chunk_tokens, sizes))
        outcome = Replay(given.file, plan, engine, given.speed).run()
    print(json.dumps(outcome.as_json(), indent=2) if given.json else outcome.as_text())
    return 1 if outcome.wrong_chunks else 0


class Engine(Protocol):
    """What a replay needs of one; see `ReplayEngine`."""

    def look_up(self, prompt: Prompt) -> int: ...

    def retrieve(self, prompt: Prompt, chunks: int) -> int: ...

    def store(self, prompt: Prompt, first: int, end: int) -> int: ...

    def end(self, request: str) -> None: ...


@dataclass(slots=True)
class _Asked:
    """A request that was looked up."""

    prompt: Prompt
    there: int
    """Number of its first chunks that are in the server, as far as is known here."""
    meant: int
    """Number of chunks that were hit when it was recorded."""
    under_way: bool = True


class Replay:
    """Operations one after the other, in the order in which they were recorded.

    What is hit is retrieved and compared.  What a recorded store stored is stored, and what was hit then and is not now,
    because an engine would have computed and stored it."""

    def __init__(self, path: str, plan: ReplayPlan, engine: Engine, speed: float | None) -> None:
        self._plan, self._engine, self._speed = plan, engine, speed
        self._outcome = ReplayOutcome(path)
        self._asked: dict[str, _Asked] = {}

    def run(self) -> ReplayOutcome:
        """Raises LMCacheError when the server does not answer."""
        started, first = time.monotonic(), self._plan.steps[0].at
        said = started
        for done, step in enumerate(self._plan.steps):
            if self._speed:
                time.sleep(max(0.0, started + (step.at - first) / self._speed - time.monotonic()))
            match step:
                case AskStep():
                    self._ask(step)
                case StoreStep():
                    self._store(step.request, step.first_chunk, step.end_chunk)
                case EndStep():
                    self._end(step.request)
            if time.monotonic() - said > _PROGRESS_SECONDS and sys.stderr.isatty():
                said = time.monotonic()
                print(f"\r{done / len(self._plan.steps):4.0%}", end="", file=sys.stderr, flush=True)
        for request, asked in self._asked.items():
            if asked.under_way:
                self._end(request)
        self._outcome.seconds = time.monotonic() - started
        if said > started:
            print("\r    \r", end="", file=sys.stderr, flush=True)
        return self._outcome

    def _ask(self, step: AskStep) -> None:
        outcome = self._outcome
        prompt = Prompt(step.request, step.model, step.salt, step.hashes)
        started = time.perf_counter()
        hits = self._engine.look_up(prompt) if step.hashes else 0
        outcome.lookup_seconds.append(time.perf_counter() - started)
        outcome.lookups += 1
        outcome.asked_chunks += len(step.hashes)
        if step.recorded_hits is not None:
            outcome.compared_chunks += len(step.hashes)
            outcome.recorded_hits += step.recorded_hits
            outcome.replayed_hits += hits
            outcome.differing_lookups += hits != step.recorded_hits
        if hits:
            outcome.wrong_chunks += self._engine.retrieve(prompt, hits)
            outcome.verified_chunks += hits
        self._asked[step.request] = _Asked(prompt, hits, step.recorded_hits or 0)

    def _store(self, request: str, first: int, end: int) -> None:
        asked = self._asked[request]
        end = min(end, len(asked.prompt.hashes))
        first = min(first, asked.there)
        if first < end:
            self._outcome.stored_chunks += self._engine.store(asked.prompt, first, end)
            asked.there = max(asked.there, end)

    def _end(self, request: str) -> None:
        asked = self._asked[request]
        self._store(request, asked.there, asked.meant)
        self._engine.end(request)
        asked.under_way = False
