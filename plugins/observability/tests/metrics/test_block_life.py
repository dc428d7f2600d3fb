"""Lives of blocks of an engine's own cache, from what its scheduler reports."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import pytest

from lmcache_core import BlocksAllocated, Event, RequestEnded
from lmcache_observability.metrics import block_life
from lmcache_observability.metrics.block_life import IDLE, LIFETIME, REUSE_GAP, BlockLife
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import MetricKind


def gave(request: str, blocks: Mapping[int, int], at: float, process: int = 7) -> BlocksAllocated:
    """Blocks, and a number for what each holds."""
    return BlocksAllocated(
        at=at,
        process_id=process,
        model_name="m",
        request_id=request,
        block_ids=array("q", blocks).tobytes(),
        content_hashes=array("q", blocks.values()).tobytes(),
    )


def ended(request: str, at: float) -> RequestEnded:
    return RequestEnded(at=at, request_id=request)


def lives(*events: Event) -> BlockLife:
    life = BlockLife(LabelNames(10, "plain"))
    for event in events:
        life.handlers[type(event)](event)
    return life


def samples_of(life: BlockLife, kind: MetricKind) -> tuple[int, float]:
    """How many were measured, and their sum."""
    (family,) = [family for family in life.families() if family.kind is kind]
    found = [distribution for _, distribution in family.distributions]
    return sum(sum(each.counts) for each in found), sum(each.sum for each in found)


def test_a_block_s_life() -> None:
    life = lives(
        gave("a", {1: 11, 2: 12}, at=100.0),
        ended("a", at=110.0),
        gave("b", {1: 11}, at=130.0),  # the same tokens again
        gave("c", {1: 11}, at=135.0),  # shared
        ended("b", at=140.0),
        ended("c", at=150.0),
        gave("d", {1: 99, 2: 98}, at=160.0),
    )
    assert samples_of(life, REUSE_GAP) == (1, 20.0)
    assert samples_of(life, LIFETIME) == (2, 60.0 + 60.0)
    assert samples_of(life, IDLE) == (2, 10.0 + 50.0)


def test_engines_are_apart_and_named() -> None:
    life = lives(
        gave("a", {1: 11}, at=0.0), gave("b", {1: 22}, at=5.0, process=8), gave("c", {1: 33}, at=9.0, process=8)
    )
    (family,) = [family for family in life.families() if family.kind is LIFETIME]
    assert [labels for labels, _ in family.distributions] == [("8", "m")]
    assert samples_of(life, LIFETIME) == (1, 4.0)


def test_what_is_followed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_life, "BLOCKS_MAX", 3)
    monkeypatch.setattr(block_life, "REQUESTS_MAX", 2)
    life = lives(
        gave("a", {1: 1, 2: 2, 3: 3, 4: 4}, at=0.0),
        gave("b", {2: 2}, at=1.0),
        gave("c", {3: 3}, at=2.0),  # the first request counts as ended
        gave("d", {1: 9, 4: 9}, at=3.0),
    )
    assert samples_of(life, LIFETIME) == (1, 3.0)
    assert samples_of(life, IDLE) == (1, 1.0)
    assert (len(life._blocks), len(life._of_request)) == (3, 2)


def test_a_request_that_ends_twice_or_was_never_seen() -> None:
    life = lives(gave("a", {1: 1}, at=0.0), ended("a", at=1.0), ended("a", at=2.0), ended("never", at=3.0))
    assert samples_of(life, IDLE) == (0, 0.0)
