"""Random schedules of an engine that blends: what is approximate stays with the request that asked for it.

`LMCACHE_TEST_SCHEDULES=10000 .venv/bin/python -m pytest --timeout 0 -k test_schedules` of this file: three minutes of one core.
"""

from __future__ import annotations

import os
import sys
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from engines.vllm.tests.fake_server import FakeServer
from engines.vllm.tests.test_scheduler_machine import CHUNK, FULL, Schedules
from engines.vllm.tests.vllm_blends import BlendRank, Ranks
from engines.vllm.tests.vllm_model import VllmModel
from engines.vllm.tests.vllm_steps import kv_of
from engines.vllm.tests.vllm_worker import ABSENT
from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.placement import Placement
from lmcache_vllm.request_facts import RequestFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.settings import Settings

EXAMPLES = int(os.environ.get("LMCACHE_TEST_SCHEDULES", "60"))
RANKS = 2
DOCUMENTS = [list(range(10 * number, 10 * number + CHUNK)) for number in range(1, 4)]
ONE, TWO, THREE = DOCUMENTS
END = 99
"""Of a document, where prompts are cut."""
PROMPTS = [
    ONE + TWO + [1, 2, 3],
    TWO + ONE + [1, 2, 3],
    [5, 6, 7] + THREE + TWO + [4],
    [7] * 20 + ONE,
    ONE,
    ONE + [8] * 9 + THREE,
    ONE + THREE + TWO + THREE,
    [4] + ONE + TWO,
    TWO + ONE + [1, 2, 3] + [6] * 12,
    [*ONE, 11, END, *TWO, END, *THREE[:5], END, 1, 2],
    [3, END, *THREE[:5], END, *TWO, END, *ONE, 11, END, 4],
    [*ONE, 11],
    [*THREE[:5], END, *ONE, 11, END, 5],
]
BLEND = BlendChoice("none", (0.15,))


class BlendSchedules(Schedules):
    """vLLM's miniature with two ranks, and requests that blend beside others that do not."""

    @initialize(
        ahead=st.integers(0, 1),
        reuses_at_once=st.booleans(),
        blocks=st.sampled_from([14, 30]),
        save_decode=st.booleans(),
        save_tail=st.booleans(),
        at_once=st.booleans(),
        eager=st.sampled_from([0, 2]),
        keep=st.booleans(),
        cuts=st.booleans(),
    )
    def start(
        self,
        ahead: int,
        reuses_at_once: bool,
        blocks: int,
        save_decode: bool,
        save_tail: bool,
        at_once: bool,
        eager: int,
        keep: bool = False,
        cuts: bool = False,
    ) -> None:
        self.time = 0.0
        self.server = FakeServer(CHUNK, answers_at_once=at_once, accepts=True, blends=True, ranks=RANKS)
        chosen = Settings(
            lookup_timeout_ms=300,
            save_decode=save_decode,
            save_tail=save_tail,
            eager_lookups=eager,
            blend="all",
            blend_min_tokens=4,
            blend_keep=keep,
        )
        self.side = SchedulerSide(
            chosen,
            Placement("model", RANKS, 0),
            (FULL,),
            self.server,
            workers=RANKS,
            separator=(END,) if cuts else (),
            clock=lambda: self.time,
            patience_seconds=0.0,
        )
        self.model = VllmModel(
            self.side,
            self.server,
            (FULL,),
            ahead=ahead,
            blocks=blocks,
            shares_prefixes=False,
            reuses_at_once=reuses_at_once,
        )
        ranks = [BlendRank(self.server, (FULL,), blocks, self.model.known, self.model.users) for _ in range(RANKS)]
        self.ranks = self.model.worker = Ranks(ranks)
        self.count = 0
        self.store([ONE, TWO, PROMPTS[2]], "")

    @rule(
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, 12),
        salt=st.sampled_from(["", "", "tenant"]),
        blend=st.sampled_from([BLEND, BLEND, BLEND, None, BlendChoice("none", (0.1,), is_own=True)]),
        known=st.booleans(),
    )
    def add(
        self, prompt: list[int], length: int, salt: str, blend: BlendChoice | None = BLEND, known: bool = False
    ) -> None:
        if known:
            self.store(DOCUMENTS, salt)
        self.count += 1
        facts = RequestFacts(f"r{self.count}", list(prompt), len(prompt), cache_salt=salt, blend=blend)
        self.model.add(facts, max_tokens=length)

    @rule(seed=st.integers(0, 1 << 16), steps=st.integers(1, 12), failing=st.sampled_from([0.0, 0.1, 0.4]))
    def run(self, seed: int, steps: int, failing: float) -> None:
        """Steps in which some of what is under way ends."""
        random = Random(seed)
        for _ in range(steps):
            self.time += 0.1
            for request_id in list(self.server.pending):
                if random.random() < 0.7:
                    self.server.answer(request_id)
            self.model.schedule()
            while len(self.model.steps) > self.model.ahead:
                self.model.run(lambda kind, number: random.random() < (failing if kind == "fail" else 0.6))

    @rule(prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=3), salt=st.sampled_from(["", "", "tenant"]))
    def store(self, prompts: list[list[int]], salt: str) -> None:
        """As another engine."""
        if self.server.server is None:
            return
        size = self.server.chunk_tokens
        for prompt in prompts:
            for end in range(size, len(prompt) + 1, size):
                content = tuple(kv_of(salt, prompt, position) for position in range(end - size, end))
                self.server.objects.setdefault((salt, *prompt[:end]), content)

    @precondition(lambda self: self.server.objects)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.server.evict(data.draw(st.sampled_from(sorted(self.server.objects))))

    @invariant()
    def nothing_approximate_has_an_exact_name(self) -> None:
        """And whatever has one is the KV of its own tokens."""
        for (space, *tokens), content in self.server.objects.items() if hasattr(self, "server") else ():
            if "%%" in space:  # a document: what it has seen was not in its own prompt
                continue
            if space.endswith("##blend"):
                assert len(tokens) > self.server.chunk_tokens, "the first chunk is never kept"
                continue
            start = len(tokens) - len(content)
            for position, seen in enumerate(content, start):
                assert seen in (kv_of(space, tokens, position), ABSENT), "approximate KV has an exact name"

    @invariant()
    def only_requests_that_blend_look_up_what_is_approximate(self) -> None:
        for key in self.server.keys if hasattr(self, "server") else ():
            if "##blend" in key.model_name and (request := self.model.known.get(key.request_id.partition("##")[0])):
                assert request.facts.blend is not None, f"{key.request_id} looks up {key.model_name}"

    def teardown(self) -> None:
        if hasattr(self, "time"):
            self.time += 1.0
        super().teardown()
        if hasattr(self, "side") and not sys.exc_info()[0]:
            assert not self.side._blends._blends
            assert not self.side._blends._by_request


def test_schedules() -> None:
    run_state_machine_as_test(
        BlendSchedules, settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    )


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_prompt_in_another_order_is_blended(ahead: int) -> None:
    """The machine's own check: without blends its checks would show nothing."""
    machine = BlendSchedules()
    machine.start(ahead, reuses_at_once=False, blocks=30, save_decode=True, save_tail=False, at_once=True, eager=2)
    for prompt in PROMPTS[:3]:
        machine.add(prompt, 3, "")
        for _ in range(8):
            machine.steps_without_delay()
    assert machine.ranks.ranks[0].blended_tokens > 0
    assert machine.side.take_counts()["blend_requests"] >= 1
    machine.teardown()


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_second_turn_takes_what_the_first_one_has_left(ahead: int) -> None:
    machine = BlendSchedules()
    machine.start(ahead, False, 30, save_decode=False, save_tail=False, at_once=True, eager=2, keep=True)
    first = TWO + ONE + [1] * 8
    for prompt, blend, taken in ((first, BLEND, 0), (first + [2] * 12, BLEND, 16), (first + [2] * 13, None, 16)):
        machine.add(prompt, 1, "", blend)
        for _ in range(8):
            machine.steps_without_delay()
        assert machine.ranks.ranks[0].kept_tokens == taken
    assert machine.side.take_counts()["blend_kept_tokens"] == 16
    machine.teardown()


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("alone", [False, True])
def test_a_document_is_found_wherever_it_lies_and_after_a_restart_of_the_index(ahead: int, alone: bool) -> None:
    """Its end, which is shorter than a chunk, too. `alone`: it was sent by itself."""
    machine = BlendSchedules()
    machine.start(ahead, False, 30, save_decode=False, save_tail=False, at_once=True, eager=2, cuts=True)
    machine.server.objects.clear()
    machine.server.indexes = False
    document = [41, 42, 43, 44, 45, 46, 47, 48, 49, 40, 39]
    for prompt, taken in (
        ([*document] if alone else [1, 2, 3, END, *document, END, 7], 0),
        ([8, END, *document, END, 9, 9], len(document)),
    ):
        machine.add(prompt, 1, "", BLEND)
        for _ in range(8):
            machine.steps_without_delay()
        assert machine.ranks.ranks[0].chained_tokens == taken
    machine.add([8, END, *document, END, 9, 9, 9], 1, "", None)
    for _ in range(8):
        machine.steps_without_delay()
    assert machine.ranks.ranks[0].chained_tokens == len(document)
    machine.teardown()


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_document_that_remembers_others_taints_a_prompt_that_begins_with_it(ahead: int) -> None:
    machine = BlendSchedules()
    machine.start(ahead, False, 30, save_decode=False, save_tail=False, at_once=True, eager=2, cuts=True)
    machine.server.objects.clear()
    machine.server.indexes = False
    document = list(range(40, 60))
    for prompt in ([1, 2, 3, END, *document, END, 7], [*document, END, 9, 9]):
        machine.add(prompt, 1, "", BLEND)
        for _ in range(8):
            machine.steps_without_delay()
        machine.nothing_approximate_has_an_exact_name()
    assert machine.ranks.ranks[0].chained_tokens == len(document)
    machine.teardown()
