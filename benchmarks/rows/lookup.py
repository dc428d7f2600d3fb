"""The lookup of a prompt that is there in full: one the server has read before, a new one, and one that grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.frames import LookupCycle
from benchmarks.prompts import ANOTHER, Prompt
from benchmarks.rows.site import Figures, Site, quantile, steady

KNOWN_CYCLES: Final = {64: 100, 512: 30}
"""By chunks: how often one prompt is looked up."""
NEW_PROMPTS: Final = {64: 24, 512: 8}
"""By chunks: how many prompts are looked up, once each."""
TURNS: Final = 40
"""Of the conversation that grows by one chunk in each."""
FIRST_TURN: Final = 512


def cycle(site: Site) -> Figures:
    """Server CPU of LOOKUP, WAIT_PREFETCH_STATUS, FREE_LOOKUP_LOCKS and END_SESSION, and the wait for the first two."""
    figures: Figures = {}
    for chunks, times in KNOWN_CYCLES.items():
        prompt = _stored(site, chunks)
        _ask(site, [_cycle(site, prompt)])
        known = (_cycle(site, prompt) for _ in range(site.times(times)))
        figures |= _figures(f"lookup_{chunks}_known", *_ask(site, known))
    for chunks, times in NEW_PROMPTS.items():
        prompts = [_stored(site, chunks) for _ in range(site.times(times))]
        figures |= _figures(f"lookup_{chunks}_new", *_ask(site, (_cycle(site, prompt) for prompt in prompts)))
    return figures


def grown(site: Site) -> Figures:
    """A conversation whose prompt is one chunk longer each time, and whose chunks are all there."""
    turns = site.times(TURNS)
    prompt = _stored(site, FIRST_TURN + turns)
    _ask(site, [_cycle(site, prompt, FIRST_TURN)])
    lengths = range(FIRST_TURN + 1, FIRST_TURN + turns + 1)
    return _figures("lookup_grown", *_ask(site, (_cycle(site, prompt, chunks) for chunks in lengths)))


def _stored(site: Site, chunks: int) -> Prompt:
    """A prompt that the server has all chunks of and has not read as engines write it."""
    number = site.number()
    prompt = Prompt(chunks, number)
    site.peer.store_prompt(prompt, f"lookup-{number}", ANOTHER)
    return prompt


def _cycle(site: Site, prompt: Prompt, chunks: int | None = None) -> LookupCycle:
    chunks = prompt.chunks if chunks is None else chunks
    return LookupCycle(prompt.token_ids(0, chunks), chunks, f"lookup-{site.number()}")


def _ask(site: Site, cycles: Iterable[LookupCycle]) -> tuple[list[float], list[float]]:
    """Seconds of server CPU and of waiting, for each."""
    cpu_seconds, waits = [], []
    for one in cycles:
        with site.server_cpu() as cpu:
            waits.append(site.peer.look_up(one))
        cpu_seconds.append(cpu.seconds)
    return cpu_seconds, waits


def _figures(name: str, cpu_seconds: list[float], waits: list[float]) -> Figures:
    return {
        f"{name}_cpu_ms": steady(cpu_seconds) * 1e3,
        f"{name}_wait_ms": quantile(sorted(waits), 0.5) * 1e3,
    }
