"""How the kinds of samples of a module are written down."""

from __future__ import annotations

from collections.abc import Mapping

from lmcache_core import SampleKind


def counter(name: str, unit: str, description: str, *labels: str) -> SampleKind:
    """A metric that only grows while the server runs."""
    return SampleKind(name, unit, description, True, labels)


def gauge(name: str, unit: str, description: str, *labels: str) -> SampleKind:
    """A metric that also falls."""
    return SampleKind(name, unit, description, False, labels)


def histogram(name: str, unit: str, description: str, bounds: tuple[float, ...], *labels: str) -> SampleKind:
    """`bounds` are the inclusive upper ends of its buckets, without the last one's."""
    return SampleKind(name, unit, description, True, labels, bounds)


def kinds_in(names: Mapping[str, object]) -> tuple[SampleKind, ...]:
    """The sample kinds among these, in their order: of a module's `globals()`, all that it defines."""
    return tuple([kind for kind in names.values() if isinstance(kind, SampleKind)])
