"""Blends in the scheduler, case by case."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from engines.vllm.tests.scheduler_rig import SETTINGS, TABLE, Rig
from lmcache_client.blend import BlendAnswer, BlendSegment
from lmcache_vllm.blend_choice import BLEND, RATIOS, SELECTOR, BlendChoice, BlendChoices
from lmcache_vllm.metadata import BlendCancel, BlendLoad, BlendLoaded, BlendResult, BlendStep, StepPlan, WorkerReport
from lmcache_vllm.request_facts import RequestFacts
from lmcache_vllm.settings import Settings

CHOICE = BlendChoice("lego_link", (0.15,), asked=True)
DOCUMENT = list(range(50, 66))
HEAD = list(range(200, 208))
PROMPT = RequestFacts("r", [*HEAD, 1, 2, 3, *DOCUMENT, *[9] * 5], 32, blend=CHOICE)
END = 27
"""Of the document in the prompt."""
BLENDING = replace(SETTINGS, blend="all", blend_min_tokens=4)


def rig(settings: Settings = BLENDING, **given: Any) -> Rig:
    """Another engine has stored the document alone, and the first chunk of the prompt."""
    found = Rig(settings, blends=True, **given)
    found.store(RequestFacts("d", DOCUMENT, 16), 16)
    found.store(RequestFacts("h", HEAD, 8), 8)
    return found


def begin(rig: Rig, facts: RequestFacts = PROMPT) -> BlendLoad:
    (load,) = rig.load(facts).blend_loads
    return load


def loaded(rig: Rig, load: BlendLoad, *flags: bool, prefix: bool = True) -> StepPlan:
    """What the next step does when one rank has loaded that."""
    rig.side.on_worker_results(WorkerReport({}, blend_loaded={load.id: BlendLoaded(1, prefix, flags)}), [])
    return rig.step()


def ended(rig: Rig, load: BlendLoad, reused: int = 0, recomputed: int = 0, gaps: int = 0, *, failed: str = "") -> None:
    result = BlendResult(reused, recomputed, gaps, failed)
    rig.side.on_worker_results(WorkerReport({}, blend_results={load.id: result}), [load.request_id])


def held(rig: Rig) -> bool:
    return rig.server.holds_anything()


# The way of one blend


def test_what_workers_load_for_a_blend() -> None:
    found = rig()
    found.side.on_new_request(PROMPT)
    assert found.side.matched_tokens("r", 0) == (END, True)
    found.side.on_allocated("r", TABLE, END)
    plan = found.step()
    (load,) = plan.blend_loads
    assert (plan.loads, plan.blends, plan.idle) == ((), (), True)
    assert (load.prefix.start, load.prefix.end, load.prefix.block_ids) == (0, 8, ((1, 2),))
    assert [(part.old_start, part.start, part.end) for part in load.segments] == [(0, 11, 19), (8, 19, 27)]
    assert (load.end, load.block_ids, load.selector, load.ratios) == (END, tuple(range(1, 8)), "lego_link", (0.15,))
    assert list(array("i", load.token_ids)) == PROMPT.tokens[:END]
    assert found.step() == StepPlan(idle=True)
    assert found.side.take_counts()["used_tokens"] == END


def test_the_last_token_is_computed() -> None:
    """Its output is what is asked for, also where a segment ends the prompt."""
    found = rig()
    load = begin(found, replace(PROMPT, tokens=PROMPT.tokens[:END], prompt_tokens=END))
    assert (load.end, load.segments[-1].end) == (END - 1, END)
    assert len(array("i", load.token_ids)) == END, "the server is asked for the segment as a whole"


def test_a_selector_that_looks_at_the_question_gets_all_tokens_before_the_last() -> None:
    found = rig()
    load = begin(found, replace(PROMPT, blend=replace(CHOICE, to_the_end=True)))
    assert (load.end, load.segments[-1].end, len(load.block_ids)) == (31, END, 8)
    assert list(array("i", load.token_ids)) == PROMPT.tokens[:31]
    found.load(replace(PROMPT, request_id="s", tokens=[9] * 32, blend=replace(CHOICE, to_the_end=True)))
    assert found.side.blend_answer("s") == {"not_blended": "no_match"}


def test_a_segment_that_one_rank_lacks_is_a_gap_for_all() -> None:
    found = rig(workers=2)
    load = begin(found)
    assert loaded(found, load, True, False).blends == ()
    assert loaded(found, load, True, True).blends == (BlendStep(load.id, 8, (True, False)),)
    assert found.step(request="other", computed=0, count=4).blends, "it is named until all ranks are done"


def test_a_prefix_that_one_rank_lacks_is_a_gap() -> None:
    found = rig(workers=2)
    load = begin(found)
    loaded(found, load, True, True)
    assert loaded(found, load, True, True, prefix=False).blends == (BlendStep(load.id, 0, (True, True)),)


def test_a_blend_is_counted_and_answered() -> None:
    found = rig()
    load = begin(found)
    loaded(found, load, True, True)
    found.now = 2.0
    ended(found, load, 12, 4, 3)
    assert found.step().blends == ()
    assert not held(found)
    assert found.side.blend_answer("r") == {
        "reused_tokens": 12,
        "recomputed_tokens": 4,
        "gap_tokens": 3,
        "kept_tokens": 0,
        "selector": "lego_link",
        "recompute_ratios": [0.15],
    }
    found.side.on_finished("r")
    counts = {name: amount for name, amount in found.side.take_counts().items() if name.startswith("blend")}
    assert counts == {
        "blend_requests": 1,
        "blend_reused_tokens": 12,
        "blend_recomputed_tokens": 4,
        "blend_gap_tokens": 3,
        "blend_kept_tokens": 0,
        "blend_seconds": 2.0,
    }


# What is approximate


def test_nothing_behind_a_moved_token_is_stored() -> None:
    found = rig(replace(BLENDING, save_decode=True, save_tail=True))
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, 12, 4, 3)
    assert found.step(END, 5).stores == ()
    assert found.step(32, 8).stores == ()


def test_what_is_before_the_first_moved_token_is_stored() -> None:
    found = rig()
    facts = replace(PROMPT, tokens=[*range(300, 317), *DOCUMENT, 9], prompt_tokens=34)
    load = begin(found, facts)
    loaded(found, load, True, True)
    ended(found, load, 12, 4, 17)
    assert [(store.start, store.end) for store in found.step(33, 1).stores] == [(0, 16)]


def test_what_a_blend_computed_as_a_whole_is_stored() -> None:
    found = rig()
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, 0, 16, 3)
    assert [(store.start, store.end) for store in found.step(END, 5).stores] == [(8, 32)]


def test_exact_segments_taint_nothing() -> None:
    """The prompt's own chunks at their own places, behind one that was evicted."""
    found = rig()
    found.store(PROMPT, 32)
    del found.server.objects[("", *PROMPT.tokens[:16])]
    load = begin(found)
    assert [(part.start, part.exact) for part in load.segments] == [(16, True), (24, True)]
    loaded(found, load, True, True)
    ended(found, load, 16, 0, 8)
    assert [(store.start, store.end) for store in found.step(31, 1).stores] == [(8, 32)]


def test_what_vllm_computes_after_a_failure_is_stored() -> None:
    found = rig()
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, failed="pass")
    assert [(store.start, store.end) for store in found.step(8, 24).stores] == [(8, 32)]


def test_a_failure_that_vllm_does_not_compute_stays_tainted() -> None:
    found = rig()
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, failed="pass")
    assert found.step(END, 5).stores == ()


def test_a_preempted_request_is_clean_and_blended_again() -> None:
    found = rig()
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, 12, 4, 3)
    found.step(END, 5)
    found.step(preempted=frozenset({"r"}))
    assert found.side.matched_tokens("r", 0) == (END, True)
    found.side.on_allocated("r", TABLE, END)
    (again,) = found.step().blend_loads
    assert again.id != load.id
    ended(found, load, 0, 19, 0)  # of the first one
    assert found.step(END, 5).stores == ()


# What is kept

KEEPING = replace(BLENDING, blend_keep=True)


def left(rig: Rig, *ends: int) -> None:
    """An earlier turn of the prompt's conversation has left the chunks that end there."""
    for end in ends:
        rig.server.objects["##blend", *PROMPT.tokens[:end]] = ()


def test_what_is_approximate_is_stored_under_a_name_of_its_own() -> None:
    found = rig(replace(KEEPING, save_decode=True))
    load = begin(found)
    loaded(found, load, True, True)
    ended(found, load, 12, 4, 3)
    stores = [*found.step(END, 5).stores, *found.step(32, 8).stores]
    assert [(store.start, store.end, store.approximate) for store in stores] == [(8, 32, True)]
    found.step(preempted=frozenset({"r"}))
    assert found.side.matched_tokens("r", 0) == (END, True)


def test_the_first_chunk_is_not_kept() -> None:
    found = rig(KEEPING)
    load = begin(found, replace(PROMPT, tokens=[1, 2, 3, *DOCUMENT, *[9] * 13]))
    loaded(found, load, True, True)
    ended(found, load, 12, 4, 3)
    assert [(store.start, store.end) for store in found.step(31, 1).stores] == [(8, 32)]


@pytest.mark.parametrize("choice", [None, CHOICE])
def test_what_is_exact_is_not_kept(choice: BlendChoice | None) -> None:
    found = rig(KEEPING)
    load = begin(found, replace(PROMPT, blend=CHOICE))
    loaded(found, load, True, True)
    ended(found, load, 0, 16, 3)
    assert [(store.start, store.approximate) for store in found.step(END, 5).stores] == [(8, False)]


@pytest.mark.parametrize(
    ("ends", "segments", "kept"),
    [
        ((16, 24, 32), [8, 16, 24], {8, 16, 24}),
        ((16,), [8, 19], {8}),
        ((24,), [16], {16}),
        ((32,), [11, 24], {24}),
        ((), [11, 19], set()),
    ],
)
def test_what_an_earlier_turn_has_left_wins_over_what_is_moved(
    ends: Sequence[int], segments: list[int], kept: set[int]
) -> None:
    found = rig(KEEPING)
    left(found, *ends)
    load = begin(found)
    assert [part.start for part in load.segments] == segments
    assert load.kept == kept
    loaded(found, load, *[True] * len(segments))
    ended(found, load, 8 * len(segments), 0, 0)
    assert found.step(31, 1).stores[-1].approximate
    assert found.side.blend_answer("r")["kept_tokens"] == 8 * len(kept) - (32 in ends)  # type: ignore[index]
    assert not held(found)


def test_what_is_exact_wins_over_what_an_earlier_turn_has_left() -> None:
    found = rig(KEEPING)
    left(found, 16, 24, 32)
    found.store(PROMPT, 24)
    del found.server.objects["", *PROMPT.tokens[:16]]
    load = begin(found)
    assert [part.start for part in load.segments] == [8, 16, 24]
    assert load.kept == {8, 24}


def test_only_requests_that_blend_find_what_is_kept() -> None:
    found = rig(KEEPING)
    left(found, 16, 24, 32)
    plan = found.load(replace(PROMPT, blend=None))
    assert (plan.blend_loads, [load.end for load in plan.loads]) == ((), [8])
    assert not any("##blend" in key.model_name for key in found.server.keys)


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    found = rig()
    left(found, 16, 24, 32)
    assert begin(found).kept == frozenset()


def test_what_is_kept_of_other_prompts_is_released_at_once() -> None:
    found = rig(KEEPING)
    found.server.objects["##blend", *[7] * 8, *DOCUMENT[:8]] = ()
    found.side.on_new_request(PROMPT)
    assert found.side.matched_tokens("r", 0) == (END, True)
    assert not found.server.segments.get("r##blend")


@pytest.mark.parametrize("request_id", ["r", "r##blend"])
def test_both_answers_are_waited_for_and_an_abort_ends_both(request_id: str) -> None:
    found = rig(KEEPING, at_once=False)
    found.side.on_new_request(PROMPT)
    found.server.answer(request_id)
    assert found.side.matched_tokens("r", 0) == (None, False)
    found.side.on_finished("r")
    assert not held(found)


def test_an_answer_of_what_is_kept_that_makes_no_sense() -> None:
    found = rig(KEEPING, at_once=False)
    found.side.on_new_request(PROMPT)
    found.server.answer("r")
    found.server.pending.pop("r##blend").future.set_result(BlendAnswer(3, ()))
    assert found.side.matched_tokens("r", 0) == (0, False)
    assert found.side.take_counts()["failed_lookups:error"] == 1
    assert not held(found)


# Ends that are not good ones


def test_without_loaded_segments_nothing_is_blended() -> None:
    found = rig()
    load = begin(found)
    assert loaded(found, load, False, False).blend_cancels == (BlendCancel(load.id, 8),)
    assert found.step() == StepPlan(idle=True)
    found.side.on_worker_results(None, ["r"])
    assert not held(found)
    assert found.side.take_counts()["blend_failures:load"] == 1
    assert found.side.matched_tokens("r", 0) == (0, False), "it would find the same again"


def test_flags_that_do_not_fit_count_as_failures() -> None:
    found = rig()
    load = begin(found)
    assert loaded(found, load, True).blend_cancels == (BlendCancel(load.id, 0),)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_does_not_report_is_not_waited_for(ranks: int) -> None:
    found = rig(workers=2)
    load = begin(found)
    if ranks == 2:
        loaded(found, load, True, True)
        assert loaded(found, load, True, True).blends
    found.now = 29.0
    assert found.step().blend_cancels == ()
    found.now = 400.0
    plan = found.step()
    assert (plan.blends, plan.blend_cancels) == ((), (BlendCancel(load.id, 8 if ranks == 2 else 0),))


def test_a_blend_waits_for_others_as_long_as_they_end() -> None:
    found = rig()
    loads = [begin(found, replace(PROMPT, request_id=name)) for name in ("a", "b", "c")]
    for load in loads:
        loaded(found, load, True, True)
    for found.now, load in zip((200.0, 400.0), loads[:2], strict=True):
        ended(found, load, 19, 0, 0)
    found.now = 699.0
    assert found.step().blends == (BlendStep(loads[2].id, 8, (True, True)),)
    found.now = 701.0
    assert found.step().blend_cancels == (BlendCancel(loads[2].id, 8),)


def test_a_rank_that_fails_ends_the_pass_of_the_others() -> None:
    found = rig(workers=2)
    load = begin(found)
    loaded(found, load, True, True)
    loaded(found, load, True, True)
    found.side.on_worker_results(WorkerReport({}, blend_results={load.id: BlendResult(0, 0, 0, "pass")}), [])
    assert found.step().blend_cancels == (BlendCancel(load.id, 8),)
    found.side.on_worker_results(WorkerReport({}, blend_results={load.id: BlendResult(9, 9, 9)}), ["r"])
    assert found.side.take_counts()["blend_failures:pass"] == 1


def test_an_abort_before_the_load_releases_everything() -> None:
    found = rig()
    found.side.on_new_request(PROMPT)
    found.side.matched_tokens("r", 0)
    assert held(found)
    found.side.on_finished("r")
    assert not held(found)


def test_an_abort_before_the_answer_releases_everything() -> None:
    found = rig(at_once=False)
    found.side.on_new_request(PROMPT)
    found.side.on_finished("r")
    assert not held(found)


def test_an_abort_ends_a_blend() -> None:
    found = rig()
    found.side.on_new_request(PROMPT)
    found.side.matched_tokens("r", 0)
    found.side.on_allocated("r", TABLE, END)
    assert not found.side.on_finished("r")
    (load,) = found.step().blend_loads  # vLLM waits for it all the same
    assert found.step().blend_cancels == (BlendCancel(load.id, 0),)
    assert held(found)
    found.side.on_worker_results(None, ["r"])
    assert not held(found)
    assert found.side.take_counts().get("blend_failures:aborted") is None


def test_what_vllm_declines_is_released() -> None:
    found = rig()
    found.side.on_new_request(PROMPT)
    assert found.side.matched_tokens("r", 0) == (END, True)
    found.side.on_allocated("r", TABLE, 0)
    assert not held(found)
    assert found.step().blend_loads == ()


def test_a_server_that_goes_between_question_and_blocks_leaves_nothing_taken_for_loaded() -> None:
    """Its connection has a thread of its own. What vLLM was promised is ordered, and fails where it cannot be loaded."""
    found = rig()
    found.side.on_new_request(PROMPT)
    assert found.side.matched_tokens("r", 0) == (END, True)
    found.server.blends = False
    found.side.on_allocated("r", TABLE, END)
    plan = found.step()
    assert (plan.loads, [load.end for load in plan.blend_loads]) == ((), [END])
    (load,) = plan.blend_loads
    assert loaded(found, load, False, False, prefix=False).blend_cancels == (BlendCancel(load.id, 0),)


# Off for all


def fail(rig: Rig, number: int, choice: BlendChoice = CHOICE) -> None:
    name = f"f{number}"
    load = begin(rig, replace(PROMPT, request_id=name, blend=choice))
    loaded(rig, load, True, True)
    ended(rig, load, failed="pass")
    rig.side.on_finished(name)


def test_three_failures_in_a_row_turn_blending_off(caplog: pytest.LogCaptureFixture) -> None:
    found = rig()
    fail(found, 1)
    fail(found, 2)
    good = begin(found)
    loaded(found, good, True, True)
    ended(found, good, 19, 0, 0)
    caplog.clear()
    with caplog.at_level(logging.ERROR, "lmcache_vllm"):
        for number in (3, 4, 5):
            assert not caplog.records
            fail(found, number)
    assert "nothing is blended any more: 3 blends in a row failed" in caplog.text
    assert found.load(replace(PROMPT, request_id="s")).blend_loads == ()
    found.side.on_finished("s")
    assert found.side.take_counts()["blend_skipped_requests:off"] == 1


def test_what_a_request_chose_is_its_own_fault() -> None:
    found = rig()
    for number in range(5):
        fail(found, number, replace(CHOICE, selector="theirs", is_own=True))
    assert begin(found)


def test_a_worker_that_does_not_blend(caplog: pytest.LogCaptureFixture) -> None:
    found = rig()
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found.side.on_worker_results(WorkerReport({}, blend_refused=frozenset({"the gate: layer 3"})), [])
    assert [record.message for record in caplog.records] == ["nothing is blended any more: the gate: layer 3"]
    plan = found.load(PROMPT)
    assert (plan.blend_loads, [load.end for load in plan.loads]) == ((), [8])


def test_a_request_that_was_looked_up_when_blending_went_off_takes_its_prefix() -> None:
    found = rig()
    found.side.on_new_request(PROMPT)
    found.side.on_worker_results(WorkerReport({}, blend_refused=frozenset({"the gate"})), [])
    assert found.side.matched_tokens("r", 0) == (8, True)
    found.side.on_allocated("r", TABLE, 8)
    (load,) = found.step().loads
    assert load.end == 8
    found.server.retrieve(load)
    found.side.on_worker_results(WorkerReport({load.id: 1}), ["r"])
    assert not held(found)


# Requests that are not blended


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"blend": replace(CHOICE, refused="images")}, "images"),
        ({"tokens": [9] * 32}, "no_match"),
        ({"tokens": [*[9] * 8, *DOCUMENT[:4], *[9] * 20]}, "no_match"),
        ({"tokens": [1, 2, 3], "prompt_tokens": 3}, "short"),
        ({"skip_reason": "cache_salt", "blend": replace(CHOICE, refused="cache_salt")}, "cache_salt"),
    ],
)
def test_a_request_is_counted_once_with_its_reason(given: dict[str, Any], reason: str) -> None:
    found = rig(replace(BLENDING, eager_lookups=1))
    found.load(replace(PROMPT, **given))
    for found.now in (5.0, 10.0):
        found.side.matched_tokens("r", 0)
    answer = found.side.blend_answer("r")
    found.side.on_finished("r")
    found.side.on_worker_results(None, ["r"])
    counts = found.side.take_counts()
    assert {name: count for name, count in counts.items() if name.startswith("blend")} == {
        f"blend_skipped_requests:{reason}": 1
    }
    assert answer == {"not_blended": reason}
    assert not held(found)


def test_few_tokens_are_not_worth_it() -> None:
    found = rig(replace(BLENDING, blend_min_tokens=17))
    plan = found.load(PROMPT)
    assert (plan.blend_loads, [load.end for load in plan.loads]) == ((), [8])
    found.side.on_finished("r")
    assert found.side.take_counts()["blend_skipped_requests:few_tokens"] == 1


def test_a_server_that_does_not_blend_is_asked_for_the_prefix() -> None:
    found = rig()
    found.server.blends = False
    assert [load.end for load in found.load(PROMPT).loads] == [8]
    found.side.on_finished("r")
    assert found.side.take_counts()["blend_skipped_requests:server"] == 1


def test_a_request_that_was_never_looked_up_is_counted() -> None:
    found = rig()
    found.server.go()
    found.load(replace(PROMPT, configs={}))
    found.side.on_finished("r")
    found.side.on_new_request(replace(PROMPT, request_id="s", looks_up=False))
    found.side.on_finished("s")
    counts = found.side.take_counts()
    assert counts["blend_skipped_requests:not_looked_up"] == 2


def test_a_request_that_did_not_ask_gets_no_answer() -> None:
    found = rig()
    found.load(replace(PROMPT, blend=None))
    assert found.side.blend_answer("r") is None
    found.load(replace(PROMPT, request_id="s", tokens=[9] * 32, blend=replace(CHOICE, asked=False)))
    assert found.side.blend_answer("s") is None
    assert found.side.blend_answer("unknown") is None


def segment(start: int, end: int, old: int = 0, tokens: int | None = None) -> BlendSegment:
    return BlendSegment(old, old + (end - start if tokens is None else tokens), start, end, b"h")


@pytest.mark.parametrize(
    "answer",
    [
        BlendAnswer(3, ()),
        BlendAnswer(40, ()),
        BlendAnswer(8, (segment(4, 12),)),
        BlendAnswer(0, (segment(12, 20), segment(4, 12))),
        BlendAnswer(0, (segment(4, 12), segment(11, 19))),
        BlendAnswer(0, (segment(4, 4),)),
        BlendAnswer(0, (segment(30, 38),)),
        BlendAnswer(0, (segment(4, 13),)),
        BlendAnswer(0, (segment(4, 12, old=-8),)),
        BlendAnswer(0, (segment(4, 12, tokens=7),)),
    ],
)
def test_an_answer_that_makes_no_sense(answer: BlendAnswer) -> None:
    found = rig(at_once=False)
    found.side.on_new_request(PROMPT)
    future: Future[Any] = found.server.pending.pop("r").future
    future.set_result(answer)
    assert found.side.matched_tokens("r", 0) == (0, False)
    assert found.side.take_counts()["failed_lookups:error"] == 1
    assert not held(found)


# What ranks say


def test_reports_of_ranks_add_up() -> None:
    one = WorkerReport(
        {1: 1}, blend_loaded={5: BlendLoaded(1, True, (True, False))}, blend_results={6: BlendResult(3, 0, 0)}
    )
    other = WorkerReport(
        {1: 1},
        blend_loaded={5: BlendLoaded(1, False, (True, True)), 7: BlendLoaded(1, True, ())},
        blend_results={6: BlendResult(0, 0, 0, "pass")},
        blend_refused=frozenset({"x"}),
    )
    for both in (one.aggregate(other), other.aggregate(one)):
        assert both.blend_loaded == {5: BlendLoaded(2, False, (True, False)), 7: BlendLoaded(1, True, ())}
        assert both.blend_results == {6: BlendResult(0, 0, 0, "pass")}
        assert (both.blend_refused, both.over) == (frozenset({"x"}), {1: 2})


def test_the_worse_of_two_results_counts() -> None:
    """One rank that kept a moved token is enough to taint the request."""
    assert BlendResult(0, 4, 0).merged(BlendResult(1, 3, 0)).reused == 1
    assert BlendResult(1, 3, 0).merged(BlendResult(0, 4, 0)).reused == 1


# What requests say

ALL, SOME = (
    BlendChoices(
        Settings(blend=mode, blend_check_layers=(1, 3)), {"full": False, "cacheblend": False, "question": True}
    )
    for mode in ("all", "requests")
)
DEFAULT = ("cacheblend", (0.15,))
NESTED: list[Any] = reduce(lambda inner, _: [inner], range(100_000), [])


@pytest.mark.parametrize(
    ("choices", "params", "found"),
    [
        (ALL, None, DEFAULT),
        (ALL, "text", DEFAULT),
        (ALL, {BLEND: False}, None),
        (ALL, {BLEND: False, SELECTOR: "full"}, None),
        (SOME, None, None),
        (SOME, {"lmcache.tag": "x"}, None),
        (SOME, {BLEND: True}, DEFAULT),
        (SOME, {SELECTOR: "full"}, ("full", (0.15,))),
        (SOME, {SELECTOR: "question"}, ("question", (0.15,))),
        (SOME, {RATIOS: 0.3}, ("cacheblend", (0.3,))),
        (SOME, {BLEND: True, RATIOS: [0.3, 0]}, ("cacheblend", (0.3, 0.0))),
        (BlendChoices(Settings(), {}), {BLEND: True}, None),
    ],
)
def test_whether_and_how(choices: BlendChoices, params: Any, found: Any) -> None:
    choice = choices.of(params)
    assert (choice and (choice.selector, choice.ratios)) == found
    assert choice is None or choice.to_the_end == (choice.selector == "question")
    if choice and isinstance(params, dict):
        assert choice.asked
        assert choice.is_own == (SELECTOR in params or RATIOS in params)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({BLEND: "yes"}, "'lmcache.blend' is 'yes'; it is true or false"),
        ({BLEND: 1}, "true or false"),
        ({BLEND: None}, "true or false"),
        ({SELECTOR: "best"}, "'lmcache.blend_selector' is 'best'; it is one of cacheblend, full, question"),
        ({SELECTOR: ["full"]}, "it is one of"),
        ({SELECTOR: {}}, "it is one of"),
        ({RATIOS: 2}, "from 0 to 1"),
        ({RATIOS: []}, "from 0 to 1"),
        ({RATIOS: [0.1, 0.2]}, "none above the one before it"),
        ({RATIOS: [0.3, 0.2, 0.1]}, "has 3 shares; it has one, or one for each of 2 check layers"),
        ({RATIOS: [float("nan")]}, "numbers from 0"),
        ({RATIOS: True}, "numbers from 0"),
        ({RATIOS: [1] * 10_000}, "at most 16 numbers"),
        ({RATIOS: "0.1"}, "numbers from 0"),
        ({RATIOS: 10**400}, "numbers from 0"),
        ({RATIOS: [0.1, 10**400]}, "numbers from 0"),
        ({RATIOS: NESTED}, "numbers from 0"),
        ({SELECTOR: NESTED}, "it is one of"),
        ({BLEND: NESTED}, "true or false"),
        ({SELECTOR: "\n2026 ERROR forged\x1b[31m" * 10}, "it is one of"),
    ],
)
def test_a_wrong_value_hurts_its_request_alone(params: dict[str, Any], says: str) -> None:
    choice = SOME.of(params)
    assert choice is not None
    assert (choice.refused, choice.asked) == ("bad_value", True)
    assert says in choice.message or len(choice.message) == 300
    found = rig()
    found.load(replace(PROMPT, blend=choice))
    assert found.side.blend_answer("r") == {"not_blended": choice.message}
    found.side.on_finished("r")
    assert found.side.take_counts()["blend_skipped_requests:bad_value"] == 1
    assert begin(found, replace(PROMPT, request_id="s"))


@pytest.mark.parametrize("key", [BLEND, SELECTOR, RATIOS])
@pytest.mark.parametrize("value", ["\n" * 1000, [0.1] * 1000, {str(number): number for number in range(1000)}])
def test_of_a_large_value_only_its_beginning_is_shown(key: str, value: Any) -> None:
    choice = SOME.of({BLEND: True, key: value})
    assert choice
    assert len(choice.message) < 200
    assert choice.message.isprintable()


def test_wrong_values_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    choices = BlendChoices(Settings(blend="requests"), {"cacheblend": False})
    with caplog.at_level(logging.INFO):
        for number in range(100):
            assert choices.of({SELECTOR: f"their {number}\nforged"})
    (record,) = caplog.records
    assert "'their 0\\nforged'" in record.getMessage()
