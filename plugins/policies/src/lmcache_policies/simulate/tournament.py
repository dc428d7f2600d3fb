"""Every policy against every capacity, in this process or in several.

Replays share nothing, so each is a task of its own.  Processes are started fresh ("spawn"), because this one may have
threads; a task carries the trace and an empty policy.  A policy that cannot be pickled is replayed here.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Final

from lmcache_core import EvictionPolicy, PluginCatalog, PluginError, ResourceError
from lmcache_policies.simulate.capacity import Capacity
from lmcache_policies.simulate.clairvoyant import Foresight, foresee
from lmcache_policies.simulate.contenders import Contender
from lmcache_policies.simulate.outcome import Outcome, Rules
from lmcache_policies.simulate.progress import Progress, ignore_progress
from lmcache_policies.simulate.replay import BadVictimError, Replay, Replayed
from lmcache_policies.simulate.trace import Trace

_WORTH_PROCESSES: Final = 1_000_000
"""Blocks to replay; below it starting processes takes longer than they save."""
Result = Replayed | Foresight
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Task:
    """One replay.  Travels to other processes."""

    place: Place
    """Row and column of the result; the clairvoyant's row is the last."""
    label: str
    trace: Trace
    capacity: int
    rules: Rules
    name: str
    policy: EvictionPolicy | None
    """None: the clairvoyant."""

    def run(self, on_progress: Callable[[int], None] = ignore_progress) -> Result:
        """Raises PluginError for a policy that fails."""
        if self.policy is None:
            return foresee(self.trace, self.capacity, on_progress)
        replay = Replay(self.trace, self.policy, self.capacity, self.rules.size, self.rules.evict_ratio)
        try:
            return replay.run(on_progress)
        except BadVictimError as error:
            raise PluginError(self.name, f"eviction policy '{self.name}' {error} ({self.label})") from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise PluginError(self.name, f"eviction policy '{self.name}' failed ({self.label}): {what}") from error

    def run_apart(self) -> Result | str:
        """For another process: what went wrong as text, because not every error can be pickled."""
        try:
            return self.run()
        except PluginError as error:
            return str(error)


def hold(
    trace: Trace,
    contenders: Sequence[Contender],
    capacities: tuple[Capacity, ...],
    rules: Rules,
    plugins: PluginCatalog,
    jobs: int,
    progress: Progress,
) -> Outcome:
    """Replay everything, in `jobs` processes beside this one if more than one.

    Raises PluginError for a policy that fails or names a victim it must not name, ResourceError when a process dies."""
    tasks = _tasks(trace, contenders, capacities, rules, plugins)
    results: dict[Place, Result] = {}
    if jobs == 1:
        results.update(_in_turn(tasks, 0, progress))
    else:
        everything = list(tasks)
        apart = {task.place for task in everything if _travels(task)}
        results.update(_in_processes([task for task in everything if task.place in apart], jobs, progress))
        here = (task for task in everything if task.place not in apart)
        results.update(_in_turn(here, len(apart), progress))
    rows = [tuple(results[row, column] for column in range(len(capacities))) for row in range(len(contenders) + 1)]
    replayed = [tuple(result for result in row if isinstance(result, Replayed)) for row in rows[:-1]]
    foreseen = tuple(result for result in rows[-1] if isinstance(result, Foresight))
    return Outcome(trace, rules, capacities, tuple(zip(contenders, replayed, strict=True)), foreseen)


def processes(tasks: int, trace: Trace) -> int:
    """How many to use where the user does not say."""
    if tasks * len(trace.blocks) < _WORTH_PROCESSES:
        return 1
    return min(tasks, len(os.sched_getaffinity(0)))


def _tasks(
    trace: Trace,
    contenders: Sequence[Contender],
    capacities: Sequence[Capacity],
    rules: Rules,
    plugins: PluginCatalog,
) -> Iterator[_Task]:
    for row, contender in enumerate([*contenders, None]):
        label = contender.label if contender else "clairvoyant"
        for column, capacity in enumerate(capacities):
            policy = contender.open(plugins) if contender else None
            name = contender.name if contender else ""
            yield _Task((row, column), f"{label} at {capacity.text}", trace, capacity.blocks, rules, name, policy)


def _in_turn(tasks: Iterable[_Task], before: int, progress: Progress) -> Iterator[tuple[Place, Result]]:
    for index, task in enumerate(tasks, before):
        result = task.run(partial(_tell, progress, task, index))
        progress.finished(task.label, _said(task, result))
        yield task.place, result


def _tell(progress: Progress, task: _Task, before: int, requests: int) -> None:
    progress.at(task.label, before + requests / task.trace.requests)


def _in_processes(tasks: Sequence[_Task], jobs: int, progress: Progress) -> Iterator[tuple[Place, Result]]:
    if not tasks:
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_prepare_process) as pool:
        try:
            running = {pool.submit(task.run_apart): task for task in tasks}
            for done, future in enumerate(as_completed(running), 1):
                task, result = running[future], future.result()
                if isinstance(result, str):
                    raise PluginError(task.name, result)
                progress.finished(task.label, _said(task, result))
                progress.at(task.label, done)
                yield task.place, result
        except BrokenProcessPool:
            raise ResourceError("a process of the replay died, perhaps for want of memory; try --jobs 1") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare_process() -> None:
    """Ctrl-C ends it without a word, and so does the end of the process that it works for."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _travels(task: _Task) -> bool:
    try:
        pickle.dumps(task.policy)
    except Exception:  # noqa: BLE001  a plugin boundary, and pickle raises whatever it meets
        return False
    return True


def _said(task: _Task, result: Result) -> str:
    seconds = f"{result.cpu_seconds:.1f} s of CPU"
    return f"{100 * result.hits / max(1, len(task.trace.blocks)):.1f} % hit, {seconds}"
