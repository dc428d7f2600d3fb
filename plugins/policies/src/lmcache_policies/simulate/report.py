"""The outcome as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from lmcache_policies.simulate.outcome import Outcome

_VERSION: Final = 1
"""Raised when a field changes its meaning or goes; new ones may come at any time."""


def as_json(outcome: Outcome) -> str:
    trace, rules = outcome.trace, outcome.rules
    blocks = len(trace.blocks)
    report: dict[str, Any] = {
        "version": _VERSION,
        "trace": {
            "path": trace.path,
            "format": trace.form,
            "requests": trace.requests,
            "blocks": blocks,
            "distinct_blocks": trace.distinct,
            "longest_request_blocks": trace.longest_request(),
            "salts": len(trace.salts),
            "chained": trace.is_chained(),
        },
        "rules": {
            "block_bytes": rules.size.bytes,
            "block_tokens": rules.size.tokens,
            "evict_ratio": rules.evict_ratio,
        },
        "capacities": [asdict(capacity) for capacity in outcome.capacities],
        "policies": [
            {
                "label": contender.label,
                "name": contender.name,
                "settings": dict(contender.settings),
                "results": [_result(outcome, column, asdict(replayed)) for column, replayed in enumerate(results)],
            }
            for contender, results in outcome.policies
        ],
        "clairvoyant": {
            "exact": outcome.exact,
            "results": [
                _result(outcome, column, asdict(foresight)) for column, foresight in enumerate(outcome.clairvoyant)
            ],
        },
    }
    return json.dumps(report, indent=2) + "\n"


def _result(outcome: Outcome, column: int, counts: dict[str, Any]) -> dict[str, Any]:
    capacity = outcome.capacities[column].blocks
    return {"capacity_blocks": capacity, "hit_rate": round(outcome.rate(counts["hits"]), 6), **counts}
