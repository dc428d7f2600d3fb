"""Samples of the serdes between L1 and adapters: bytes, time and failures of each, in each direction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.samples import Sample, counter, kinds_in
from lmcache_core.contracts.serde import SerdeAdapter

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

_LABELS: Final = ("l2_name", "serde", "direction")

OBJECTS: Final = counter(
    "lmcache.l2.serde.objects",
    "{object}",
    "Objects that a serde encoded on their way to an adapter, or decoded on their way back.",
    *_LABELS,
)
INPUT: Final = counter("lmcache.l2.serde.input", "By", "Bytes that it was given.", *_LABELS)
OUTPUT: Final = counter("lmcache.l2.serde.output", "By", "Bytes that it made of them.", *_LABELS)
SECONDS: Final = counter("lmcache.l2.serde.time", "s", "Time that it took, all threads together.", *_LABELS)
FAILURES: Final = counter(
    "lmcache.l2.serde.failures",
    "{object}",
    "Objects that it could not encode, or whose stored bytes it refused.",
    *_LABELS,
)
REFUSED: Final = counter(
    "lmcache.l2.serde.refused",
    "{object}",
    "Objects that were not given to any serde: too_large for their memory, of an unknown_layout, or stored through "
    "other_chain of serdes.",
    "l2_name",
    "reason",
)

KINDS: Final = kinds_in(globals())


def serde_samples(parts: Parts) -> Iterator[Sample]:
    for client in parts.tiers.l2.clients:
        if not isinstance(client.adapter, SerdeAdapter):
            continue
        for (serde, direction), row in client.adapter.serde_counts().items():
            labels = (client.name, serde, direction)
            yield OBJECTS.of(row.objects, *labels)
            yield INPUT.of(row.input_bytes, *labels)
            yield OUTPUT.of(row.output_bytes, *labels)
            yield SECONDS.of(row.seconds, *labels)
            yield FAILURES.of(row.failures, *labels)
        for reason, count in client.adapter.refusals().items():
            yield REFUSED.of(count, client.name, reason)
