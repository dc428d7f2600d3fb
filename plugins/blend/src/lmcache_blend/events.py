"""What happens in blending, for subscribers; built only where one wants it."""

from __future__ import annotations

from lmcache_core import Event


class BlendLookupAnswered(Event, frozen=True):
    """An engine that blends got the answer of a lookup.  `segments` are chunks behind the prefix, with `segment_tokens`
    tokens."""

    request_id: str
    model_name: str
    cache_salt: str
    prompt_tokens: int
    prefix_tokens: int
    segments: int
    segment_tokens: int
    seconds: float


class BlendSegmentsRead(Event, frozen=True):
    """A worker was given segments, or has them in its pages; `gone` of those that it asked for were not there any more."""

    request_id: str
    model_name: str
    cache_salt: str
    instance_id: int
    segments: int
    gone: int


class BlendRequestRefused(Event, frozen=True):
    """A request of an engine was refused; also one that registers rotary tables.  `reason` is a sentence."""

    operation: str
    reason: str
