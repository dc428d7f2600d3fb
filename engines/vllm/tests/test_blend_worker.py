"""The worker side of blends without vLLM: what is computed, in which slices, and what becomes of what fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm.tests.worker_kit import BLOCK_TOKENS, CHUNK_TOKENS, fused_hnd, until
from lmcache_client import LMCacheError, NoAnswerError
from lmcache_client.blend import BLEND_COMMIT, BLEND_PREPARE, BlendSegment, BlendSlots
from lmcache_client.messages import SlotDescriptor
from lmcache_vllm import worker
from lmcache_vllm.blend_entry import Entries, Entry, entered, layers_before, watched
from lmcache_vllm.blend_load import load_blend
from lmcache_vllm.blend_pages import attention_paid
from lmcache_vllm.blend_ranks import OneRank
from lmcache_vllm.blending import Blending, in_slices, runs_of
from lmcache_vllm.metadata import BlendCancel, BlendLoad, BlendLoaded, BlendResult, BlendStep, StepPlan, Transfer
from lmcache_vllm.placement import Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_task import Outcome, TransferTask

torch = pytest.importorskip("torch")

LAYER_NAMES = ("layer.0", "layer.1", "layer.2")


# Slices


def mask(*runs: range, end: int = 64) -> npt.NDArray[np.bool_]:
    found = np.zeros(end, bool)
    for run in runs:
        found[run.start : run.stop] = True
    return found


@given(st.lists(st.booleans(), max_size=200))
def test_runs_are_the_positions_of_a_mask(bits: list[bool]) -> None:
    runs = runs_of(np.array(bits, bool))
    assert [position for run in runs for position in run] == [place for place, bit in enumerate(bits) if bit]
    assert all(one.stop < other.start for one, other in pairwise(runs))


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 50), st.integers(1, 10))
def test_slices_have_every_token_once_in_order_and_keep_both_limits(
    bits: list[bool], tokens_max: int, rows_max: int
) -> None:
    runs = runs_of(np.array(bits, bool))
    parts = list(in_slices(runs, tokens_max, rows_max))
    assert [position for part in parts for run in part for position in run] == [p for run in runs for p in run]
    for part in parts:
        assert 0 < sum(map(len, part)) <= tokens_max
        assert len(part) <= rows_max
    for part in parts[:-1]:
        assert sum(map(len, part)) == tokens_max or len(part) == rows_max


# Courses


@dataclass
class Model:
    """Passes and pages of a model whose fresh K differs from what was loaded as `deviation` says, by layer and position."""

    deviation: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    fails: Callable[[Sequence[int]], bool] = lambda positions: False
    block_tokens = 16
    layer_names = LAYER_NAMES
    passes: list[tuple[list[int], str | None]] = field(default_factory=list)
    written: dict[str, set[int]] = field(default_factory=dict)
    paid: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(64, np.float32))
    """Attention of each token of the question."""
    asking: list[int] = field(default_factory=list)
    entered: list[str] = field(default_factory=list)
    hides: bool = False
    """It does not say what tokens enter a layer with."""

    def batch(self, runs: Sequence[range], token_ids: Sequence[int], block_ids: Sequence[int], size: int) -> Any:
        return SimpleNamespace(positions=torch.tensor([position for run in runs for position in run]))

    def run(self, batch: Any, entry: Entry | None = None, until: str | None = None) -> None:
        """Tokens enter each layer with their positions."""
        positions = batch.positions.tolist()
        if self.fails(positions):
            raise RuntimeError("out of memory")
        self.passes.append((positions, until))
        if entry is not None:
            assert entry.tensors[0].tolist() == positions
            self.entered.append(entry.layer)

    def run_to(self, name: str, batch: Any, entry: Entry | None = None) -> Any:
        """Its queries are the positions."""
        self.run(batch, entry, name)
        self.written.setdefault(name, set()).update(batch.positions.tolist())
        return batch.positions[:, None], None if self.hides else Entry(name, (batch.positions,))

    def attention(self, name: str, queries: Any, positions: Any, keys: Any) -> Any:
        assert queries[:, 0].tolist() == positions.tolist()
        self.asking += positions.tolist()
        assert len(keys) == len(self.paid)
        return torch.from_numpy(self.paid) * len(positions)

    def keys(self, name: str, block_ids: Sequence[int], positions: Any) -> Any:
        written = self.written.get(name, set())
        moved = [self.deviation[name][p] ** 0.5 if p in written else 0.0 for p in positions.tolist()]
        return torch.tensor(moved)[:, None, None]


def blending(model: Model, ranks: Any = None, rows_max: int = 64, **settings: Any) -> Blending:
    passes: Any = model
    pages: Any = model
    ours = Settings(**{"blend_check_layers": (1,)} | settings)
    tokens_max = ours.blend_step_tokens
    return Blending(passes, pages, ranks or OneRank(), ours, tokens_max=tokens_max, rows_max=rows_max)


def segment(
    start: int, end: int, old_start: int = 32_000, *, exact: bool = False, follows: bool = False
) -> BlendSegment:
    return BlendSegment(old_start, old_start + end - start, start, end, b"%d" % start, exact, follows)


def order(
    *segments: BlendSegment, end: int = 64, selector: str = "full", ratios: tuple[float, ...] = (0.15,), number: int = 1
) -> BlendLoad:
    prefix = Transfer(number, f"r{number}", b"\x90", 0, 0, CHUNK_TOKENS, ((),))
    blocks = tuple(range(1, 1 + -(-end // BLOCK_TOKENS)))
    tokens = np.arange(end, dtype=np.int32).tobytes()
    return BlendLoad(prefix, segments, end, blocks, tokens, selector, ratios)


def step(load: BlendLoad, *loaded: bool, start: int = 0) -> tuple[BlendLoad, BlendStep]:
    return load, BlendStep(load.id, start, loaded or (True,) * len(load.segments))


def run(found: Blending, *steps: tuple[BlendLoad, BlendStep], limit: int = 100) -> dict[int, BlendResult]:
    """Until all are over."""
    results: dict[int, BlendResult] = {}
    for _ in range(limit):
        results |= found.step([each for each in steps if each[1].id not in results])
        if len(results) == len(steps):
            return results
    raise AssertionError(f"not over after {limit} steps: {results}")


def test_gaps_are_computed_and_what_was_loaded_stays() -> None:
    model = Model()
    load = order(segment(10, 26), segment(30, 46), selector="none")
    assert run(blending(model), step(load)) == {1: BlendResult(32, 0, 32)}
    assert model.passes == [([*range(10), *range(26, 30), *range(46, 64)], None)]


def test_a_segment_that_was_not_loaded_is_a_gap() -> None:
    model = Model()
    load = order(segment(10, 26), segment(30, 46), selector="none")
    assert run(blending(model), step(load, True, False)) == {1: BlendResult(16, 0, 48)}
    assert model.passes == [([*range(10), *range(26, 64)], None)]


def test_nothing_before_its_start_is_computed_or_counted() -> None:
    model = Model()
    load = order(segment(32, 48), selector="full")
    assert run(blending(model), step(load, start=16)) == {1: BlendResult(0, 16, 32)}
    assert model.passes == [([*range(16, 64)], None)]


def test_a_segment_that_reaches_behind_the_end_counts_to_it() -> None:
    load = order(segment(40, 72), end=50, selector="none")
    assert run(blending(Model()), step(load, start=40)) == {1: BlendResult(10, 0, 0)}


def test_the_prompts_own_chunks_are_never_computed_again() -> None:
    model = Model()
    load = order(segment(0, 16), segment(32, 64, 32, exact=True), selector="full")
    assert run(blending(model), step(load)) == {1: BlendResult(32, 16, 16)}
    assert model.passes == [([*range(32)], None)]


@pytest.mark.parametrize(
    ("selector", "ratio", "computed"), [("none", 0.15, 0), ("lego_link", 0.5, 8), ("full", 0.15, 48)]
)
def test_what_an_earlier_turn_has_left_is_computed_only_where_all_is(
    selector: str, ratio: float, computed: int
) -> None:
    kept = segment(32, 64, 32, exact=True)
    load = replace(order(segment(0, 16), kept, selector=selector, ratios=(ratio,)), kept=frozenset({32}))
    assert run(blending(Model()), step(load)) == {1: BlendResult(48 - computed, computed, 16)}


def test_chunks_of_one_chain_have_no_seam() -> None:
    model = Model()
    apart = order(segment(0, 24), segment(24, 48, 32_024), end=48, selector="lego_link", ratios=(1.0,))
    joined = order(segment(0, 24), segment(24, 48, 32_024, follows=True), end=48, selector="lego_link", ratios=(1.0,))
    assert run(blending(model), step(apart)) == {1: BlendResult(16, 32, 0)}
    assert run(blending(model), step(joined)) == {1: BlendResult(32, 16, 0)}


def test_one_slice_a_step_in_order_within_both_limits() -> None:
    model = Model()
    found = blending(model, blend_step_tokens=20)
    load = step(order(segment(0, 64), selector="full"))
    assert [found.step([load]) for _ in range(4)] == [{}, {}, {}, {1: BlendResult(0, 64, 0)}]
    assert [positions for positions, _ in model.passes] == [[*range(a, min(a + 20, 64))] for a in range(0, 64, 20)]
    assert found.step([load]) == {}, "it begins anew: the worker does not name what is over"


def test_blends_of_one_step_share_its_tokens_in_order() -> None:
    model = Model()
    found = blending(model, blend_step_tokens=50)
    short, long = step(order(segment(0, 30), end=30, number=1)), step(order(segment(0, 64), number=2))
    assert found.step([short, long]) == {1: BlendResult(0, 30, 0)}
    assert found.step([long]) == {}
    assert found.step([long]) == {2: BlendResult(0, 64, 0)}
    assert [len(positions) for positions, _ in model.passes] == [30, 50, 14]


DEVIATION = np.arange(64, dtype=np.float32)


def test_a_probe_chooses_the_tokens_whose_k_deviates_most() -> None:
    model = Model({"layer.1": DEVIATION})
    load = order(segment(0, 32), segment(40, 56), selector="cacheblend", ratios=(0.25,))
    assert run(blending(model, blend_step_tokens=30), step(load)) == {1: BlendResult(36, 12, 16)}
    assert [name for _, name in model.passes] == ["layer.1", "layer.1", "layer.1", None]
    assert [position for positions, name in model.passes if name for position in positions] == [*range(64)]
    assert model.passes[-1] == ([*range(32, 40), *range(44, 64)], None)


@pytest.mark.parametrize("hides", [False, True])
def test_no_layer_is_computed_twice_for_a_token(hides: bool) -> None:
    model = Model({"layer.0": DEVIATION, "layer.1": DEVIATION}, hides=hides)
    load = order(segment(0, 32), segment(32, 64), selector="cacheblend", ratios=(0.5, 0.25))
    run(blending(model, blend_check_layers=(0, 1), blend_step_tokens=20), step(load))
    assert model.entered == ([] if hides else ["layer.0"] * 2 + ["layer.1"])


def test_a_token_that_no_pass_has_left_begins_at_the_first_layer() -> None:
    entries = Entries("layer.1", 8)
    entries.add(torch.tensor([6, 2]), Entry("layer.1", (torch.tensor([60, 20]), torch.tensor([[1], [2]]))))
    found = entries.of(torch.tensor([2, 6]))
    assert found is not None
    assert [each.tolist() for each in found.tensors] == [[20, 60], [[2], [1]]]
    assert entries.of(torch.tensor([2, 3])) is None
    entries.add(torch.tensor([3]), None)
    assert entries.of(torch.tensor([3])) is None


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Counts its calls, and changes what it is given where it is, as fused norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.Identity()
        self.calls = 0

    def forward(self, hidden: Any, residual: Any) -> Any:
        self.calls += 1
        residual += hidden
        return self.attention(hidden * 2), residual


class Decoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, hidden: Any) -> Any:
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return hidden, residual


def test_a_pass_that_begins_at_a_layer_ends_as_one_from_the_first() -> None:
    model, hidden = Decoder(), torch.arange(12.0).reshape(4, 3)
    before = layers_before(model, "layers.2.attention")
    assert list(before) == list(model.layers)[:2]
    assert not layers_before(model, "layers")
    with watched(before, "two", 4) as found:
        whole = model(hidden.clone())
    entries = Entries("two", 4)
    entries.add(torch.arange(4), found())
    some = entries.of(torch.tensor([3, 1]))
    assert some is not None
    with entered(before, some):
        part = model(hidden[[3, 1]].clone())
    assert [each.tolist() for each in part] == [each[[3, 1]].tolist() for each in whole]
    assert [layer.calls for layer in model.layers] == [1, 1, 2]
    model(hidden.clone())
    assert [layer.calls for layer in model.layers] == [2, 2, 3], "it is as it was"
    with watched(before, "two", 5) as found:
        model(hidden.clone())
    assert found() is None, "not one row for each token"


def test_several_check_layers_filter_one_after_the_other() -> None:
    """A token that deviates most at the second is not chosen when it was dropped at the first."""
    model = Model({"layer.0": DEVIATION, "layer.1": DEVIATION[::-1].copy()})
    load = order(segment(0, 64), selector="cacheblend", ratios=(0.5, 0.25))
    assert run(blending(model, blend_check_layers=(0, 1)), step(load)) == {1: BlendResult(48, 16, 0)}
    assert model.passes == [
        ([*range(64)], "layer.0"),
        ([*range(32, 64)], "layer.1"),
        ([*range(32, 48)], None),
    ]


def test_tokens_above_a_threshold_are_chosen_whatever_the_share_is() -> None:
    model = Model({"layer.1": DEVIATION})
    load = order(segment(0, 64), selector="cacheblend", ratios=(0.0,))
    assert run(blending(model, blend_thresholds=(59.5,)), step(load)) == {1: BlendResult(60, 4, 0)}


def test_the_attention_of_the_last_tokens_is_a_fact_for_selectors_that_ask() -> None:
    """The tokens that deviate most are those that the question does not attend to."""
    paid = np.zeros(160, np.float32)
    paid[:32] = 1.0
    model = Model({"layer.1": np.arange(160, dtype=np.float32)}, paid=paid)
    load = order(segment(0, 128), end=160, selector="question", ratios=(0.125,))
    assert run(blending(model, blend_step_tokens=110), step(load)) == {1: BlendResult(112, 16, 32)}
    assert model.asking == [*range(96, 160)]
    assert model.passes[-1] == ([*range(16, 32), *range(128, 160)], None)


def test_attention_is_that_of_the_model() -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys = torch.randn(5, 4, 8, generator=generator), torch.randn(12, 2, 8, generator=generator)
    positions = torch.tensor([3, 7, 8, 10, 11])
    expected = torch.zeros(12)
    for query, position in zip(queries, positions.tolist(), strict=True):
        for head in range(4):
            seen = keys[: position + 1, head // 2]
            expected[: position + 1] += (seen @ query[head] * 0.5).softmax(dim=0)
    assert torch.allclose(attention_paid(queries, positions, keys, 0.5), expected, atol=1e-5)


def test_an_unknown_selector_fails_its_own_blend_alone() -> None:
    bad, good = step(order(segment(0, 64), selector="wrong")), step(order(segment(0, 64), number=2))
    results = run(blending(Model()), bad, good)
    assert (results[1].failed, results[2].failed) == ("selector", "")


# Ranks


class Together:
    """Ranks in threads. A rank that waits alone for ten seconds raises."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=10)
        self._given: list[Any] = []
        self._lock = threading.Lock()

    def _all(self, value: Any) -> list[Any]:
        with self._lock:
            self._given.append(value)
        self._barrier.wait()
        given = list(self._given)
        if self._barrier.wait() == 0:
            self._given.clear()
        self._barrier.wait()
        return given

    def agree(self, fine: bool) -> bool:
        return all(self._all(fine))

    def add(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        added: npt.NDArray[np.float32] = np.sum(self._all(values), axis=0)
        return added


def side_by_side(models: Sequence[Model], load: BlendLoad, **settings: Any) -> list[BlendResult]:
    ranks = Together(len(models))
    results: list[Any] = [None] * len(models)

    def work(place: int) -> None:
        results[place] = run(blending(models[place], ranks, **settings), step(load))[load.id]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_ranks_add_up_their_deviations_and_choose_alike() -> None:
    heads = [np.zeros(64, np.float32), np.zeros(64, np.float32)]
    heads[0][:8], heads[1][8:16] = 3.0, 3.0  # each sees half of what deviates
    heads[0][16:24], heads[1][16:24] = 2.0, 2.0  # and both what deviates most
    models = [Model({"layer.1": deviation}) for deviation in heads]
    load = order(segment(0, 64), selector="cacheblend", ratios=(0.125,))
    assert side_by_side(models, load) == [BlendResult(56, 8, 0)] * 2
    assert models[0].passes == models[1].passes
    assert models[0].passes[-1] == ([*range(16, 24)], None)


@pytest.mark.parametrize("fails_at", [0, 20, 60])
def test_a_pass_that_fails_on_one_rank_fails_on_all_and_none_waits(fails_at: int) -> None:
    models = [Model({"layer.1": DEVIATION}), Model({"layer.1": DEVIATION}, lambda positions: fails_at in positions)]
    load = order(segment(0, 64), selector="cacheblend", ratios=(0.125,))
    results = side_by_side(models, load, blend_step_tokens=20)
    assert [result.failed for result in results] == ["other_rank", "pass"]


# Loads


class Pages:
    def __init__(self, *, broken: Sequence[int] = ()) -> None:
        self.written: list[tuple[int, range, int, int]] = []
        self._broken = broken

    def write(self, chunk: int, chunk_tokens: int, tokens: range, blocks: Any, target: int, delta: int) -> int:
        if chunk in self._broken:
            raise OSError("the memory has vanished")
        self.written.append((chunk, tokens, target, delta))
        return len(tokens)


class Server:
    """A session and all that a load uses of it."""

    def __init__(self, slots: Sequence[int | None] | Exception, *, is_fenced: bool = False) -> None:
        self.is_fenced, self.instance_id = is_fenced, 7
        self.pages = SimpleNamespace(chunk_tokens=CHUNK_TOKENS)
        self.channel = self
        self.calls: list[Any] = []
        self.suspected = False
        self.heard_of: list[float] = []
        self._slots = slots

    @contextmanager
    def use(self) -> Iterator[Any]:
        yield self

    def suspect(self, registration: Any) -> None:
        self.suspected = True

    def heard(self, asked: float) -> None:
        self.heard_of.append(asked)

    def call(self, operation: Any, *payload: Any) -> BlendSlots:
        self.calls.append(operation)
        if isinstance(self._slots, Exception):
            raise self._slots
        return BlendSlots(tuple(slot if slot is None else SlotDescriptor(slot, 1, (), "") for slot in self._slots))

    def tell(self, operation: Any, *payload: Any) -> None:
        self.calls.append((operation, *payload))

    def addresses(self, slots: Sequence[SlotDescriptor]) -> list[int]:
        return [slot.offset for slot in slots]


def loaded(server: Server, pages: Pages, load: BlendLoad) -> tuple[BlendLoaded, Outcome]:
    session: Any = server
    placed: Any = pages
    return load_blend(TransferTask(load.prefix), load, session, Placement("model", 1, 0), placed)


def test_rows_of_chunks_go_to_their_new_positions() -> None:
    pages, server = Pages(), Server([500, 600])
    load = order(segment(10, 42, 64), segment(50, 82, 2 * CHUNK_TOKENS), end=64)
    assert loaded(server, pages, load) == (BlendLoaded(1, True, (True, True)), Outcome(32 + 14))
    assert pages.written == [(500, range(32), 10, -54), (600, range(14), 50, -14)]
    assert server.calls == [BLEND_PREPARE, (BLEND_COMMIT, "r1", 7)]


def test_a_segment_that_fails_is_left_out() -> None:
    pages, server = Pages(broken=[600]), Server([None, 600, 700])
    load = order(segment(0, 32, 32), segment(32, 64, 0), segment(64, 96, 64, exact=True), end=96)
    found, outcome = loaded(server, pages, load)
    assert found == BlendLoaded(1, True, (False, False, True))
    assert outcome.failure == "copy"
    assert pages.written == [(700, range(32), 64, 0)]


def test_what_an_earlier_turn_has_left_is_asked_for_under_its_own_name() -> None:
    class Sharing(Server):
        def call(self, operation: Any, *payload: Any) -> BlendSlots:
            key, segments, _ = payload
            self.calls.append((key.model_name, key.request_id, [each.start for each in segments]))
            return BlendSlots(tuple(SlotDescriptor(500 + each.start, 1, (), "") for each in segments))

    pages, server = Pages(broken=[532]), Sharing([])
    parts = segment(0, 16, 64), segment(32, 64, 32, exact=True), segment(64, 96, 64, exact=True), segment(96, 112)
    load = replace(order(*parts, end=112), kept=frozenset({32, 64}))
    found, outcome = loaded(server, pages, load)
    assert found == BlendLoaded(1, True, (True, False, True, True))
    assert (outcome.bytes, outcome.failure) == (64, "copy")
    assert server.calls == [
        ("model", "r1", [0, 96]),
        (BLEND_COMMIT, "r1", 7),
        ("model##blend", "r1##blend", [32, 64]),
        (BLEND_COMMIT, "r1##blend", 7),
    ]


def test_a_segment_that_is_not_in_one_chunk_is_left_out() -> None:
    pages = Pages()
    found, _ = loaded(Server([500, 600]), pages, order(segment(0, 32, 16), segment(64, 80, 16), end=80))
    assert found.segments == (False, True)


def test_what_a_worker_read_that_was_taken_for_dead_does_not_count() -> None:
    found, outcome = loaded(Server([500], is_fenced=True), Pages(), order(segment(0, 32)))
    assert (found.segments, outcome.failure, outcome.bytes) == ((False,), "too_late", 0)


@pytest.mark.parametrize(("slots", "knows"), [([500], True), ([None], True), ([], False)])
def test_only_a_server_that_knows_this_worker_moves_its_fence(slots: Sequence[int | None], knows: bool) -> None:
    """One that took it for dead refuses, too, and may have given its slots to others."""
    server = Server(slots)
    loaded(server, Pages(), order(segment(0, 32)))
    assert len(server.heard_of) == knows


def test_many_segments_that_fail_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    pages = Pages(broken=range(100))
    with caplog.at_level(logging.INFO):
        loaded(Server(range(100)), pages, order(*(segment(32 * at, 32 * at + 32) for at in range(100)), end=3200))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("slots", "failure", "suspected"),
    [([], "missing", False), (NoAnswerError("away"), "no_answer", True), (LMCacheError("no"), "refused", False)],
)
def test_a_server_that_refuses_leaves_gaps(slots: Any, failure: str, suspected: bool) -> None:
    server = Server(slots)
    found, outcome = loaded(server, Pages(), order(segment(0, 32), segment(32, 64)))
    assert (found, outcome.failure) == (BlendLoaded(1, True, (False, False)), failure)
    assert server.suspected == suspected
    assert server.calls == [BLEND_PREPARE, (BLEND_COMMIT, "r1", 7)], "its reads end with as many commits as prepares"


def test_a_load_that_was_called_off_writes_no_more() -> None:
    load, pages = order(segment(0, 32), segment(32, 64)), Pages()
    task = TransferTask(load.prefix)
    task.cancel()
    session: Any = Server([500, 600])
    placed: Any = pages
    found, outcome = load_blend(task, load, session, Placement("model", 1, 0), placed)
    assert (found.segments, outcome.failure, pages.written) == ((False, False), "cancelled", [])


# The worker


@contextmanager
def blending_worker(model: Model, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> Iterator[Any]:
    """Without a server; `load` stands in for what is asked of it."""
    monkeypatch.setattr(worker, "load_blend", load)
    monkeypatch.setattr(worker.WorkerSide, "_usable", True)
    monkeypatch.setattr(worker.WorkerSide, "_session", None)
    side = unregistered_worker()
    passes: Any = blending(model)
    side._blending = passes
    yield side
    side.close()


def unregistered_worker() -> worker.WorkerSide:
    paged = fused_hnd()
    return worker.WorkerSide(Settings(blend="all"), Placement("model", 1, 0), paged.groups, paged.kv_layout)


def one_step(side: Any, **plan: Any) -> tuple[Any, Any, set[int]]:
    """Report, results and failed blocks of a step."""
    full = StepPlan(**plan)
    side.on_step(full)
    side.start_loads(full)
    side.start_stores(full)
    results = side.results()
    return side.report(), results, side.failed_blocks()


def has_all(task: TransferTask, load: BlendLoad, *args: Any) -> tuple[BlendLoaded, Outcome]:
    return BlendLoaded(1, True, (True,) * len(load.segments)), Outcome(1)


def reported(side: Any, number: int) -> BlendLoaded:
    found: list[BlendLoaded] = []

    def asked() -> bool:
        report, _, _ = one_step(side)
        if report is not None and number in report.blend_loaded:
            found.append(report.blend_loaded[number])
        return bool(found)

    assert until(asked)
    return found[0]


def test_a_blend_is_loaded_computed_and_received_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = order(segment(0, 64))
    with blending_worker(Model(), monkeypatch, has_all) as side:
        one_step(side, blend_loads=(load,))
        assert reported(side, 1) == BlendLoaded(1, True, (True,))
        report, results, failed = one_step(side, blends=(BlendStep(1, 0, (True,)),))
        assert report.blend_results == {1: BlendResult(0, 64, 0)}
        assert results.finished_recving == {"r1"}
        assert not failed
        assert one_step(side, blends=(BlendStep(1, 0, (True,)),))[0] is None, "it is over, and nothing is said twice"


def test_a_pass_that_fails_names_the_blocks_from_its_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    load = order(segment(32, 64))
    with blending_worker(Model(fails=lambda positions: True), monkeypatch, has_all) as side:
        one_step(side, blend_loads=(load,))
        reported(side, 1)
        report, results, failed = one_step(side, blends=(BlendStep(1, 32, (True,)),))
        assert report.blend_results[1].failed == "pass"
        assert results.finished_recving == {"r1"}
        assert failed == set(load.block_ids[32 // BLOCK_TOKENS :])


def test_a_worker_that_does_not_blend_says_so_and_has_loaded_nothing() -> None:
    side = unregistered_worker()
    report, _, _ = one_step(side, blend_loads=(order(segment(0, 32), segment(32, 64)),))
    side.close()
    assert report.blend_loaded == {1: BlendLoaded(1, False, (False, False))}
    assert report.blend_refused == {worker.NO_RUNNER}


def test_a_blend_that_is_called_off_while_it_loads_writes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loading, cancelled = threading.Event(), threading.Event()
    touched: list[bool] = []

    def slow(task: TransferTask, load: BlendLoad, *args: Any) -> tuple[BlendLoaded, Outcome]:
        loading.set()
        assert cancelled.wait(10)
        try:
            with task.touching():
                touched.append(True)
        except Exception:  # noqa: BLE001
            touched.append(False)
        return has_all(task, load)

    load = order(segment(32, 64))
    with blending_worker(Model(), monkeypatch, slow) as side:
        one_step(side, blend_loads=(load,))
        assert loading.wait(10)
        _, results, failed = one_step(side, blend_cancels=(BlendCancel(1, 32),))
        cancelled.set()
        assert results.finished_recving == {"r1"}
        assert failed == set(load.block_ids[32 // BLOCK_TOKENS :])
        assert until(lambda: touched == [False])
        assert one_step(side, blends=(BlendStep(1, 0, (True,)),))[1].finished_recving == set()


def test_an_idle_step_waits_a_little_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(task: TransferTask, load: BlendLoad, *args: Any) -> tuple[BlendLoaded, Outcome]:
        assert release.wait(10)
        return has_all(task, load)

    def seconds(**plan: Any) -> float:
        began = time.monotonic()
        one_step(side, **plan)
        return time.monotonic() - began

    with blending_worker(Model(), monkeypatch, slow) as side:
        assert min(seconds(idle=True) for _ in range(5)) < worker.IDLE_SECONDS, "nothing is loaded"
        one_step(side, blend_loads=(order(segment(0, 64)),))
        assert seconds(idle=True) >= worker.IDLE_SECONDS
        assert min(seconds() for _ in range(5)) < worker.IDLE_SECONDS, "it computes meanwhile"
        release.set()
        reported(side, 1)
        assert min(seconds(idle=True) for _ in range(5)) < worker.IDLE_SECONDS
