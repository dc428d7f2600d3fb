"""The engine does what a model of it does, over random stores, lookups, retrieves, freezes, pins and clears."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.local.tests.parts import BLOCK, CHUNK, LAYERS, fill, kv_cache, opened, slots
from lmcache_client import LMCacheError

PER_CHUNK = CHUNK // BLOCK
CHUNKS_MAX = 6
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=CHUNKS_MAX)
"""Two chunks of tokens, in any order: prompts share beginnings, and chunks come again at other positions."""
SMALL, AMPLE = 0.001, 0.02


def tokens_of(prompt: list[int]) -> list[int]:
    return [each * 100 + place for each in prompt for place in range(CHUNK)]


class EngineMachine(RuleBasedStateMachine):
    """`stored`: prefixes whose last chunk was published; the engine may have fewer where it is small, and never others."""

    @initialize(gigabytes=st.sampled_from([SMALL, AMPLE]))
    def open(self, gigabytes: float) -> None:
        self.is_ample = gigabytes == AMPLE
        self.kv = kv_cache()
        self.context = opened(self.kv, max_local_cpu_size=gigabytes)
        self.engine = self.context.__enter__()
        self.stored: set[tuple[int, ...]] = set()
        self.pins: dict[str, tuple[tuple[int, ...], int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)

    def expected(self, prompt: list[int], first: int = 0) -> int:
        """Chunks from `first` on."""
        end = first
        while end < len(prompt) and tuple(prompt[: end + 1]) in self.stored:
            end += 1
        return end - first

    def check(self, found: int, prompt: list[int], first: int = 0) -> None:
        wanted = self.expected(prompt, first) * CHUNK
        assert found == wanted if self.is_ample else found <= wanted

    @rule(prompt=PROMPTS, skipped=st.integers(0, 2), by_layer=st.booleans())
    def store(self, prompt: list[int], skipped: int, by_layer: bool) -> None:
        first, tokens = min(skipped, len(prompt)), tokens_of(prompt)
        blocks = range(len(prompt) * PER_CHUNK)
        fill(self.kv, blocks, tokens)
        mask = torch.arange(len(tokens)) >= first * CHUNK
        if by_layer:
            list(self.engine.store_layer(tokens, mask=mask, slot_mapping=slots(blocks)))
        else:
            self.engine.store(tokens, mask=mask, slot_mapping=slots(blocks))
        if not self.engine.is_frozen():
            self.stored |= {tuple(prompt[: end + 1]) for end in range(first, len(prompt))}

    @rule(prompt=PROMPTS)
    def lookup(self, prompt: list[int]) -> None:
        self.check(self.engine.lookup([*tokens_of(prompt), 7, 7]), prompt)

    @rule(prompt=PROMPTS, name=st.sampled_from(["a", "b"]))
    def pin(self, prompt: list[int], name: str) -> None:
        found = self.engine.lookup(tokens_of(prompt), pin=True, lookup_id=name)
        self.check(found, prompt)
        self.pins[name] = tuple(prompt), found

    @rule(name=st.sampled_from(["a", "b", "never"]))
    def unpin(self, name: str) -> None:
        self.engine.lookup_unpin(name)
        self.pins.pop(name, None)

    @rule(prompt=PROMPTS, steps=st.integers(0, LAYERS))
    def store_that_is_dropped(self, prompt: list[int], steps: int) -> None:
        storing = self.engine.store_layer(tokens_of(prompt), slot_mapping=slots(range(len(prompt) * PER_CHUNK)))
        for _ in range(steps):
            next(storing)
        storing.close()

    @rule(prompt=PROMPTS, skipped=st.integers(0, 2), by_layer=st.booleans())
    def retrieve(self, prompt: list[int], skipped: int, by_layer: bool) -> None:
        first, tokens = min(skipped, len(prompt)), tokens_of(prompt)
        blocks = range(128, 128 + len(prompt) * PER_CHUNK)
        for layer in self.kv:
            layer[128:] = 0
        mask = torch.arange(len(tokens)) >= first * CHUNK
        if by_layer:
            *_, found = self.engine.retrieve_layer(tokens, mask=mask, slot_mapping=slots(blocks))
        else:
            found = self.engine.retrieve(tokens, mask=mask, slot_mapping=slots(blocks))
        count = int(found.sum())
        self.check(count, prompt, first)
        assert found.tolist() == [first * CHUNK <= place < first * CHUNK + count for place in range(len(tokens))]
        wanted = kv_cache()
        fill(wanted, blocks, tokens)
        begin, end = 128 + first * PER_CHUNK, 128 + first * PER_CHUNK + count // BLOCK
        for mine, right in zip(self.kv, wanted, strict=True):
            assert torch.equal(mine[begin:end], right[begin:end])
            assert not mine[128:begin].any()
            assert not mine[end:].any()

    @rule(prompt=PROMPTS)
    def fork(self, prompt: list[int]) -> None:
        """The child has no cache, and whatever it does changes nothing here."""
        child = os.fork()
        if not child:
            try:
                self.engine.lookup(tokens_of(prompt))
            except LMCacheError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    @rule(enabled=st.booleans())
    def freeze(self, enabled: bool) -> None:
        self.engine.freeze(enabled)

    @rule(prompt=PROMPTS)
    def clear_a_prompt(self, prompt: list[int]) -> None:
        self.engine.clear(tokens_of(prompt))
        kept = {pinned[: end + 1] for pinned, found in self.pins.values() for end in range(found // CHUNK)}
        self.stored -= {tuple(prompt[: end + 1]) for end in range(len(prompt))} - kept

    @rule()
    def clear(self) -> None:
        self.engine.clear()
        kept = {prompt[: end + 1] for prompt, found in self.pins.values() for end in range(found // CHUNK)}
        self.stored &= kept

    @rule(seed=st.integers(1, 1000))
    def flood(self, seed: int) -> None:
        """Half of what the small one holds, so that others have to go."""
        self.engine.store([seed * 1000 + place for place in range(64 * CHUNK)], slot_mapping=slots(range(128)))

    @rule(prompt=PROMPTS)
    def store_that_fails(self, prompt: list[int]) -> None:
        """Its slots come back, and nothing of it is found."""
        try:
            self.engine.store(tokens_of(prompt), slot_mapping=slots(range(10_000, 10_000 + len(prompt) * PER_CHUNK)))
        except ValueError:
            return
        assert self.engine.is_frozen() or self.expected(prompt) == len(prompt) or not self.is_ample

    def counts(self, held: int) -> dict[str, Any]:
        """Of memory, once what is on its way has arrived."""
        deadline = time.monotonic() + 30
        while (counts := self.engine.status()["l1"])["held"] != held and time.monotonic() < deadline:
            time.sleep(0.002)
        return dict(counts)

    @invariant()
    def slots_add_up_and_pins_hold(self) -> None:
        if not hasattr(self, "engine"):
            return
        pinned = {prompt[: end + 1] for prompt, found in self.pins.values() for end in range(found // CHUNK)}
        counts = self.counts(len(pinned))
        assert counts["state_counts_add_up"]
        assert counts["held"] == len(pinned), "what no call and no pin needs is held"
        for prompt, found in self.pins.values():
            assert self.engine.lookup(tokens_of(list(prompt))) >= found


class TieredMachine(EngineMachine):
    """The same with files below memory: what was stored and written stays found, however little memory there is.  A lookup
    that is frozen sees memory alone."""

    @initialize(gigabytes=st.sampled_from([SMALL, AMPLE]))
    def open(self, gigabytes: float) -> None:
        self.folder = tempfile.mkdtemp()
        self.is_ample = False  # memory may have less, and files more
        self.kv = kv_cache()
        self.context = opened(self.kv, max_local_cpu_size=gigabytes, local_disk=self.folder, max_local_disk_size=0.1)
        self.engine = self.context.__enter__()
        self.stored = set()
        self.pins = {}

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule()
    def clear(self) -> None:
        self.engine.clear()

    @rule(prompt=PROMPTS)
    def clear_a_prompt(self, prompt: list[int]) -> None:
        self.engine.clear(tokens_of(prompt))

    @rule(prompt=PROMPTS)
    def what_was_written_is_found_again(self, prompt: list[int]) -> None:
        if self.engine.is_frozen() or self.pins:
            return
        self.store(prompt, 0, False)
        self.counts(0)
        dropped = self.engine.status()["store"]["adapters"]
        self.engine.clear()
        found = self.engine.lookup(tokens_of(prompt))
        assert found == len(prompt) * CHUNK or any(each["dropped"] for each in dropped.values())


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTiers = TieredMachine.TestCase
TestTiers.settings = TestEngine.settings
