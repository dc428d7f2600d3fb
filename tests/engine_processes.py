"""Which process of a test run has the real engines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ENGINE_PROCESSES: Final = 2
_ROOT: Final = Path(__file__).parents[1]


@cache
def starts_engines(file: str) -> bool:
    return "pytest.mark.engine" in (_ROOT / file).read_text()


class EnginesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files with engines go to two of the processes, all others to the rest, and at the end anything to each.

    A process that starts an engine first imports vLLM, and asks an engine of its own for what is right.  Engines compute and
    other tests mostly wait, so that the two kinds side by side keep the processors busy."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_for_engines = self.nodes.index(node) < ENGINE_PROCESSES
        of_its_kind = (file for file in self.workqueue if starts_engines(file) == is_for_engines)
        self.workqueue.move_to_end(next(of_its_kind, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)
