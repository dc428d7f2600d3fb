"""Names of metrics in Prometheus, by OpenTelemetry's rules for it: the unit is spelled out at the end of the name."""

from __future__ import annotations

import re
from typing import Final

from lmcache_observability.metrics.metric_kind import MetricKind, MetricType

_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": "", "%": "percent"}
_PER: Final = {"s": "second"}
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9:]+")
_NOT_IN_LABELS: Final = re.compile(r"[^a-zA-Z0-9]+")
_ANNOTATION: Final = re.compile(r"\{.*\}")


def prometheus_name(kind: MetricKind) -> str:
    """Without the `_total`, `_bucket`, ... of its samples."""
    name, unit = _NOT_IN_NAMES.sub("_", kind.name), prometheus_unit(kind.unit)
    if kind.type is MetricType.COUNTER:
        name = name.removesuffix("_total")
    return f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name


def prometheus_unit(unit: str) -> str:
    """The word for a unit; empty where there is none."""
    plain = _ANNOTATION.sub("", unit)
    whole, slash, part = plain.partition("/")
    if slash and part:
        return f"{_word(whole)}_per_{_PER.get(part, _word(part))}".lstrip("_")
    return _word(plain)


def label_name(label: str) -> str:
    return _NOT_IN_LABELS.sub("_", label)


def _word(unit: str) -> str:
    return _UNITS.get(unit, _NOT_IN_NAMES.sub("_", unit).strip("_"))
