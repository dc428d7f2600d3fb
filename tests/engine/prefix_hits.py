"""Hits of 1, 2, 4 ... 256 chunks on one site, from L1 and from L2."""

from __future__ import annotations

from demo.prompts import random_prompt
from tests.engine.comparison import assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import Site

HITS = [1 << power for power in range(9)]


def check_prefix_hits(site: Site, reference: Reference) -> None:
    """Prompts that share that number of chunks with one that is cached, in L1 and, after a crash, in L2 only."""
    whole = random_prompt(5, HITS[-1] * site.chunk_tokens)
    prompts = [whole[: hit * site.chunk_tokens] + random_prompt(hit, site.chunk_tokens // 2) for hit in HITS]
    truth = reference.answers(prompts)
    stored_before = len(site.l2.objects())
    assert_computed(site.engine.ask([whole]))
    site.wait_stored(stored_before + HITS[-1])

    from_l1 = site.engine.ask(prompts)
    site.crash_server()
    site.wait_reconnected()
    from_l2 = site.engine.ask(prompts)  # each doubles what L1 has by then: half of every hit comes from L2

    for answers in (from_l1, from_l2):
        assert [answer.cached_tokens for answer in answers] == [hit * site.chunk_tokens for hit in HITS]
        assert_right(answers, truth)
