"""One measurement from opening the adapters to giving everything back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_tools.bench.adapter_lane import AdapterLane
from lmcache_tools.bench.baseline import baseline
from lmcache_tools.bench.comparison import Comparison, Progress, Subject
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import BenchFailedError
from lmcache_tools.bench.memory import BenchMemory, bench_memory
from lmcache_tools.bench.open_baseline import open_baseline
from lmcache_tools.bench.open_lane import open_lane
from lmcache_tools.bench.plan import Plan
from lmcache_tools.bench.report import Report
from lmcache_tools.quantities import size_text


class Session:
    """Adapters by their specs, compared with the medium that `asked_medium` names (`baseline`).  One thread."""

    def __init__(
        self,
        specs: Sequence[AdapterSpec],
        plugins: LoadedPlugins,
        plan: Plan,
        *,
        asked_medium: str,
        patience_seconds: float,
        may_leave: bool,
        interruption: Interruption,
    ) -> None:
        """`may_leave`: also adapters that cannot delete what is stored there."""
        self._specs = tuple(specs)
        self._plugins = plugins
        self._plan = plan
        self._asked_medium = asked_medium
        self._patience_seconds = patience_seconds
        self._may_leave = may_leave
        self._interruption = interruption
        self._media: dict[str, str] = {}
        self._on_storage: set[str] = set()
        self._lanes: list[AdapterLane] = []

    def measure(self, progress: Progress) -> Report:
        """As `Comparison`.  Whatever was stored is deleted, and all that was opened is closed, however it ends.  Raises
        LMCacheError when something cannot be opened, or could never take what is to be stored; a failure on the way is in
        the report."""
        with ExitStack() as undo:
            memory = undo.enter_context(bench_memory(self._plan.memory_bytes))
            subjects = [self._open(spec, memory, undo) for spec in self._specs]
            region = memory.arena.region
            comparison = Comparison(self._plan, subjects, region, self._interruption, self._patience_seconds, progress)
            failure: BenchFailedError | None = None
            try:
                comparison.hold()
            except BenchFailedError as error:
                failure = error
        left = {lane.name: len(lane.stored) for lane in self._lanes}  # what could not be deleted when all was closed
        return Report(self._plan, comparison.results, self._media, self._on_storage, left, failure)

    def _open(self, spec: AdapterSpec, memory: BenchMemory, undo: ExitStack) -> Subject:
        asked = baseline(spec, self._asked_medium)
        if asked.folder is not None:
            self._on_storage.add(spec.name)
        lane = open_lane(spec, self._plugins, memory, self._patience_seconds, undo, self._plan.sizes)
        self._lanes.append(lane)
        _check(spec.name, lane.adapter, self._plan, self._may_leave)
        medium, self._media[spec.name] = open_baseline(f"medium of {spec.name}", asked, self._plan, memory, undo)
        return Subject(lane, medium)


def _check(name: str, adapter: L2Adapter, plan: Plan, may_leave: bool) -> None:
    """Raises ConfigError where a pass could only fail, or would leave objects behind unasked."""
    if Capability.DELETE not in adapter.capabilities and not may_leave:
        raise ConfigError(
            f"{name}: cannot delete, so everything that is stored would stay there; --leave-behind allows that"
        )
    longest, limit = max(plan.sizes), adapter.max_object_bytes
    if limit is not None and longest > limit:
        raise ConfigError(
            f"{name}: takes objects of at most {size_text(limit)} ({limit} bytes), and --sizes asks for {longest}; lower "
            "--sizes, or raise what limits it in its settings"
        )
    usage = adapter.usage()
    if usage is None or usage.capacity_bytes is None:
        return
    free = usage.capacity_bytes - usage.used_bytes
    if plan.stored_bytes > free:
        raise ConfigError(
            f"{name}: has {size_text(free)} free, and a pass stores {size_text(plan.stored_bytes)}; lower --bytes, --depths "
            "or --sizes, or raise its capacity"
        )
