"""Engines under one name that do not say what their bytes mean, and differ in what the server can see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.contracts.request_module import Worker
from lmcache_core.controllers.conditions import counts_of
from lmcache_core.model.model_name import parse_model_name


def model_conflicts(workers: Iterable[Worker]) -> Iterator[Condition]:
    """A name with an identity is another one wherever bytes mean something else: only names without one can conflict."""
    by_name: dict[str, list[Worker]] = {}
    for worker in workers:
        if not parse_model_name(worker.model_name).identity:
            by_name.setdefault(worker.model_name, []).append(worker)
    for name, those in sorted(by_name.items()):
        if differences := list(_differences(those)):
            yield Condition(
                "model_conflict",
                Severity.WARNING,
                f"its engines differ: {'; '.join(differences)}; the server cannot tell whether they serve one model",
                "serve other models under other paths, or use LMCacheNodeConnector, which says what its bytes mean",
                f"model {name}",
                counts_of(workers=len(those)),
            )


def _differences(workers: list[Worker]) -> Iterator[str]:
    worlds = sorted({worker.world_size for worker in workers})
    if len(worlds) > 1:
        yield f"world sizes {', '.join(map(str, worlds))}"
    dtypes = sorted({" + ".join(sorted(_dtypes(worker))) for worker in workers})
    if len(dtypes) > 1:
        yield f"types {', '.join(dtypes)}"
        return
    shapes: dict[tuple[int, int], set[str]] = {}
    for worker in workers:
        shard = 0 if worker.world_size == 1 else worker.shard
        if shard is not None:  # stages of one engine may differ
            shapes.setdefault((worker.world_size, shard), set()).add(_shape(worker))
    for (world, shard), those in sorted(shapes.items()):
        if len(those) > 1:
            yield f"chunks of shard {shard} of {world}: {', '.join(sorted(those))}"


def _dtypes(worker: Worker) -> set[str]:
    return {part.dtype for group in worker.groups for part in getattr(group.layout, "parts", (group.layout,))}


def _shape(worker: Worker) -> str:
    return " | ".join(str(group.layout) for group in worker.groups)
