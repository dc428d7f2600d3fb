"""Metrics as text: Prometheus' format, and OpenMetrics with exemplars for clients that ask for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from lmcache_observability.metrics.metric_kind import (
    Distribution,
    Exemplar,
    Family,
    LabelValues,
    MetricKind,
    MetricType,
)
from lmcache_observability.metrics.prometheus_name import label_name, prometheus_name, prometheus_unit

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_EXACT: Final = 2.0**53
"""Whole numbers below are written without a point."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Exposition(NamedTuple):
    media_type: str
    body: bytes


def exposition(families: Sequence[Family], target: Mapping[str, str], accept: str) -> Exposition:
    """All metrics and `target_info` (attributes of this server), in the format that the `Accept` header asks for."""
    is_open = "application/openmetrics-text" in accept
    lines = [*_target(target, is_open=is_open)]
    for family in families:
        lines += _family(family, is_open=is_open)
    if is_open:
        lines.append("# EOF")
    return Exposition(OPEN_METRICS if is_open else TEXT, "\n".join([*lines, ""]).encode("utf-8", "replace"))


def _target(target: Mapping[str, str], *, is_open: bool) -> Iterator[str]:
    head, kind = ("target", "info") if is_open else ("target_info", "gauge")
    yield f"# HELP {head} Target metadata"
    yield f"# TYPE {head} {kind}"
    yield f"target_info{_braces(_labels(tuple(target), tuple(target.values())))} 1"


def _family(family: Family, *, is_open: bool) -> Iterator[str]:
    kind = family.kind
    name, is_counter = prometheus_name(kind), kind.type is MetricType.COUNTER
    sample = f"{name}_total" if is_counter else name
    head = name if is_open else sample
    yield f"# HELP {head} {kind.description.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {head} {kind.type}"
    unit = prometheus_unit(kind.unit)
    if is_open and unit:
        yield f"# UNIT {head} {unit}"
    for labels, value in family.numbers:
        yield f"{sample}{_braces(_labels(kind.labels, labels))} {_number(value)}"
    for labels, distribution in family.distributions:
        yield from _histogram(kind, name, labels, distribution, is_open=is_open)


def _histogram(
    kind: MetricKind, name: str, values: LabelValues, distribution: Distribution, *, is_open: bool
) -> Iterator[str]:
    labels = _labels(kind.labels, values)
    begin = f"{name}_bucket{{{labels},le=" if labels else f"{name}_bucket{{le="
    ends = [*map(repr, kind.bounds), "+Inf"]
    total = 0
    for bucket, (end, total) in enumerate(zip(ends, accumulate(distribution.counts), strict=True)):
        line = f'{begin}"{end}"}} {total}'
        exemplar = distribution.exemplars.get(bucket) if is_open else None
        yield line + _exemplar(exemplar) if exemplar else line
    yield f"{name}_sum{_braces(labels)} {_number(distribution.sum)}"
    yield f"{name}_count{_braces(labels)} {total}"


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id:032x}"}} {_number(exemplar.value)} {exemplar.at:.3f}'


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(
        f'{label_name(name)}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)
    )


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < _EXACT else repr(float(value))
