"""The passes of blends: which tokens are computed, in which order, a slice of them in each step.

A blend is a course of slices. All ranks run the same course, in lockstep, because they decide from the same facts: what
all of them have loaded, and deviations that they add up. Whatever fails on one rank fails on all of them. A rank that fails
alone in the middle of the model, where the others wait for it, ends its process (`Ranks`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lmcache_blend_select import Facts, Need, Segment, SelectorError, budget, select, selector
from lmcache_vllm.blend_entry import Entries
from lmcache_vllm.blend_ranks import Ranks
from lmcache_vllm.metadata import BlendLoad, BlendResult, BlendStep
from lmcache_vllm.settings import Settings

if TYPE_CHECKING:  # vLLM comes with them
    from lmcache_vllm.blend_entry import Entry
    from lmcache_vllm.blend_pages import BlendPages
    from lmcache_vllm.blend_pass import Batch, ModelPass

logger = logging.getLogger(__name__)

QUESTION_TOKENS: Final = 64
"""At the end of a blend: those whose attention a selector may ask for."""
T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
"""One for each position of a prompt."""
Runs = tuple[range, ...]
"""Positions: ascending, disjoint, each run of step 1."""


class BlendFailedError(Exception):
    """A blend failed on some rank. `reason` is a word for a counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Slice(NamedTuple):
    """Tokens of one pass."""

    runs: Runs
    until: str | None = None
    """The layer whose K is measured, and where the pass ends."""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.runs))


Course = Iterator[Slice]


class Blend:
    """A request that is being blended."""

    def __init__(self, order: BlendLoad, step: BlendStep) -> None:
        self.order = order
        self.start = step.start
        self.token_ids: Sequence[int] = np.frombuffer(order.token_ids, np.int32).tolist()
        self.loaded, self.computed = self.none(), self.none()
        exact = self.none()
        self.chooser = selector(order.selector)
        share = order.ratios[-1] if self.chooser.ratio is None else self.chooser.ratio
        moved = [not segment.exact or (share == 1 and segment.start in order.kept) for segment in order.segments]
        for segment, there, is_moved in zip(order.segments, step.loaded, moved, strict=True):
            self.loaded[segment.start : segment.end] = there
            exact[segment.start : segment.end] = there and not is_moved
        self.loaded[: self.start] = False
        self.moved = self.loaded & ~exact
        """Loaded from other places or prompts. What is exact stays as it was loaded, whatever the selector chooses, and so does
        what an earlier turn has left, unless all tokens are to be computed."""
        self.segments = _joined(order, step, moved)
        self.attention = np.zeros(order.end, np.float32)
        """By position, that of the question at the check layer that is measured."""
        self.deviation: npt.NDArray[np.float32] = np.empty(0, np.float32)
        """By position, at the check layer that is measured; NaN where it was not."""
        self.entries: Entries | None = None
        """Where the next pass begins; None: at the first layer."""
        self.reached: Entries | None = None
        """What the passes to a check layer have left so far."""
        self.course: Course = iter(())
        self.next: Slice | None = None

    def none(self) -> Mask:
        return np.zeros(self.order.end, bool)

    def with_gaps(self, chosen: Mask) -> Mask:
        """These tokens, and those that were not loaded."""
        todo: Mask = chosen | ~self.loaded
        todo[: self.start] = False
        return todo

    def result(self) -> BlendResult:
        todo, loaded = self.computed, self.loaded
        counts = [int(np.count_nonzero(each)) for each in (loaded & ~todo, loaded & todo, todo & ~loaded)]
        return BlendResult(counts[0], counts[1], counts[2])


class Blending:
    """Runs the blends of one worker. Everything on the model's thread."""

    def __init__(
        self,
        passes: ModelPass,
        pages: BlendPages,
        ranks: Ranks,
        settings: Settings,
        *,
        tokens_max: int,
        rows_max: int,
    ) -> None:
        """`tokens_max` and `rows_max`: of one step."""
        self.pages = pages
        self._passes = passes
        self._ranks = ranks
        self._settings = settings
        self._tokens_max = tokens_max
        self._rows_max = rows_max
        self._running: dict[int, Blend] = {}

    def step(self, steps: Iterable[tuple[BlendLoad, BlendStep]]) -> Mapping[int, BlendResult]:
        """Run slices of these blends, one of each as long as tokens of this step are left; results of those that are over."""
        left = self._tokens_max
        over: dict[int, BlendResult] = {}
        for order, step in steps:
            try:
                blend = self._running.get(step.id) or self._start(order, step)
                if blend.next is not None:
                    if blend.next.tokens > left:
                        break
                    left -= blend.next.tokens
                    self._run(blend, blend.next)
                if blend.next is None:
                    over[step.id] = blend.result()
            except BlendFailedError as error:
                over[step.id] = BlendResult(0, 0, order.end - step.start, error.reason)
            if step.id in over:
                self.forget(step.id)
        return over

    def forget(self, blend_id: int) -> None:
        """It is over, or was called off."""
        self._running.pop(blend_id, None)

    def _start(self, order: BlendLoad, step: BlendStep) -> Blend:
        def begin() -> Blend:
            blend = Blend(order, step)
            blend.course = self._course(blend)
            blend.next = next(blend.course, None)
            return blend

        blend = self._running[step.id] = self._together(begin)
        return blend

    def _run(self, blend: Blend, part: Slice) -> None:
        order, block_tokens = blend.order, self.pages.block_tokens
        batch = self._together(lambda: self._passes.batch(part.runs, blend.token_ids, order.block_ids, block_tokens))

        self._together(lambda: self._pass(blend, part.until, batch))
        blend.next = self._together(lambda: next(blend.course, None))

    def _pass(self, blend: Blend, until: str | None, batch: Batch) -> None:
        if until:
            self._measure(blend, until, batch)
        else:
            self._passes.run(batch, self._entry(blend, batch))

    @staticmethod
    def _entry(blend: Blend, batch: Batch) -> Entry | None:
        return blend.entries.of(batch.positions) if blend.entries else None

    def _measure(self, blend: Blend, layer: str, batch: Batch) -> None:
        """Run a pass to this layer, and see how far its K is from what was loaded, and what the question attends to."""
        blocks = blend.order.block_ids
        before = self.pages.keys(layer, blocks, batch.positions)
        queries, entry = self._passes.run_to(layer, batch, self._entry(blend, batch))
        if blend.reached:
            blend.reached.add(batch.positions, entry)
        moved = self.pages.keys(layer, blocks, batch.positions) - before
        blend.deviation[batch.positions.numpy()] = moved.square().sum((1, 2)).cpu().numpy()
        asking = batch.positions >= blend.order.end - QUESTION_TOKENS
        if Need.ATTENTION in blend.chooser.needs and asking.any():
            # In order of position, so that what is before these tokens was written.
            keys = self.pages.keys(layer, blocks, torch.arange(blend.order.end))
            paid = self._passes.attention(layer, queries[asking.to(queries.device)], batch.positions[asking], keys)
            blend.attention += paid.cpu().numpy()

    def _together(self, work: Callable[[], T]) -> T:
        """Raises BlendFailedError on all ranks where it fails on one."""
        reason, result = "", None
        try:
            result = work()
        except SelectorError as error:
            logger.error("tokens of a blend could not be chosen: %s", error)
            reason = "selector"
        except Exception:
            logger.exception("a pass of a blend failed")
            reason = "pass"
        if not self._ranks.agree(not reason):
            raise BlendFailedError(reason or "other_rank")
        return result  # type: ignore[return-value]

    def _course(self, blend: Blend) -> Course:
        chosen = yield from self._chosen(blend)
        blend.computed = blend.with_gaps(chosen)
        yield from self._slices(blend.computed)

    def _chosen(self, blend: Blend) -> Generator[Slice, None, Mask]:
        """The loaded tokens that are computed again."""
        chooser = blend.chooser
        total = int(np.count_nonzero(blend.moved))
        if not total:
            return blend.none()
        layers = self._settings.blend_check_layers
        counts = [budget(chooser, ratio, total) for ratio in _for_each(layers, blend.order.ratios)]
        if Need.DEVIATION not in chooser.needs:
            return self._selected(blend, counts[-1])
        thresholds = _for_each(layers, self._settings.blend_thresholds)
        measured: list[npt.NDArray[np.float32]] = []
        chosen = blend.moved
        for place, (layer, count) in enumerate(zip(layers, counts, strict=True)):
            blend.deviation = np.full(blend.order.end, np.nan, np.float32)
            blend.attention = np.zeros(blend.order.end, np.float32)
            name = self.pages.layer_names[layer]
            blend.reached = Entries(name, blend.order.end)
            yield from self._slices(blend.with_gaps(chosen), name)
            # All layers before are fresh, and are not computed again.
            blend.entries, blend.reached = blend.reached, None
            deviation = np.where(chosen, self._ranks.add(blend.deviation), np.float32(np.nan))
            measured.append(deviation[blend.moved])
            attention = None
            if Need.ATTENTION in chooser.needs:
                attention = self._ranks.add(blend.attention)[blend.moved]
            chosen = self._selected(blend, count, np.array(measured), attention)
            if thresholds:
                chosen |= deviation > thresholds[place]
        return chosen

    def _selected(
        self,
        blend: Blend,
        count: int,
        deviation: npt.NDArray[np.float32] | None = None,
        attention: npt.NDArray[np.float32] | None = None,
    ) -> Mask:
        facts = Facts(blend.segments, count, self.pages.block_tokens, deviation, attention)
        chosen = blend.none()
        for start, end in select(blend.chooser, facts):
            chosen[start:end] = True
        return chosen

    def _slices(self, todo: Mask, until: str | None = None) -> Course:
        for part in in_slices(runs_of(todo), self._tokens_max, self._rows_max):
            yield Slice(part, until)


def _for_each(layers: Sequence[int], values: Sequence[float]) -> Sequence[float]:
    """One for all layers, or for each of them one."""
    return list(values) * len(layers) if len(values) == 1 else values


def _joined(order: BlendLoad, step: BlendStep, moved: Sequence[bool]) -> tuple[Segment, ...]:
    """Segments that were loaded and moved; chunks of one chain that adjoin are one."""
    found: list[Segment] = []
    old_end = -1
    for segment, there, is_moved in zip(order.segments, step.loaded, moved, strict=True):
        if not there or not is_moved:
            continue
        end = min(segment.end, order.end)
        last = found[-1] if found else None
        if last is not None and segment.follows and last.end == segment.start and old_end == segment.old_start:
            found[-1] = Segment(last.start, end, last.old_start)
        else:
            found.append(Segment(segment.start, end, segment.old_start))
        old_end = segment.old_end
    return tuple(found)


def runs_of(mask: Mask) -> Runs:
    """Its positions, neighbours together."""
    ends = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return tuple(range(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=True))


def in_slices(runs: Iterable[range], tokens_max: int, rows_max: int) -> Iterator[Runs]:
    """The same positions in order, at most that number of tokens and runs at a time."""
    part: list[range] = []
    free = tokens_max
    for run in runs:
        start = run.start
        while start < run.stop:
            stop = min(run.stop, start + free)
            part.append(range(start, stop))
            free -= stop - start
            start = stop
            if not free or len(part) == rows_max:
                yield tuple(part)
                part, free = [], tokens_max
    if part:
        yield tuple(part)
