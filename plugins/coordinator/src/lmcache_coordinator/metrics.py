"""`GET /metrics`: the coordinator's counts as text for Prometheus.  docs/operate/counts.md has their equations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lmcache_core import salt_text

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "lmcache_coordinator_"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = {}


class Family(NamedTuple):
    """A metric, with its values."""

    name: str
    """Counters end in `_total`."""
    about: str
    samples: Iterable[Sample]


def exposition(coordinator: Coordinator) -> bytes:
    """Takes locks for a moment each; the values are of one moment each, not all of the same."""
    lines = list[str]()
    for family in families(coordinator):
        name = _PREFIX + family.name
        lines.append(f"# HELP {name} {family.about}")
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        for value, labels in family.samples:
            pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
            lines.append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
    return "\n".join([*lines, ""]).encode()


def families(coordinator: Coordinator) -> list[Family]:
    registry, journals, posted, eviction = (
        coordinator.registry,
        coordinator.journals,
        coordinator.posted,
        coordinator.eviction,
    )
    counts, used = coordinator.placements.counts(), coordinator.usage.by_salt()
    salts = sorted({*used, *coordinator.quotas.last.limits})
    limits = [(salt, limit) for salt in salts if (limit := coordinator.quotas.last.limit(salt)) is not None]
    taken, stale = journals.counts(), coordinator.stale.totals()
    return [
        Family(
            "leader", "1 at the coordinator that evicts, 0 at others.", [Sample(int(coordinator.leadership.is_leader))]
        ),
        Family("instances", "Servers that are registered.", [Sample(len(registry.live()))]),
        Family("instances_timed_out_total", "Servers that were dropped.", [Sample(registry.timed_out)]),
        Family(
            "placements",
            "Keys by location, of those that lookups find.",
            [Sample(keys, {"instance": each.instance, "source": each.source}) for each, keys in sorted(counts.items())],
        ),
        Family(
            "peers_asked_total",
            "Objects that peers asked a server for, because the directory says that it has them.",
            [Sample(share.asked, {"instance": name}) for name, share in sorted(stale.items())],
        ),
        Family(
            "peers_stale_total",
            "Those of them that they did not get.",
            [Sample(share.stale, {"instance": name}) for name, share in sorted(stale.items())],
        ),
        Family("directory_bytes", "Memory of the directory.", [Sample(coordinator.placements.size_bytes())]),
        Family("pages_total", "Pages of journals and snapshots.", [Sample(taken.pages)]),
        Family(
            "keys_total",
            "Keys in these pages, by what became of them.",
            [
                Sample(taken.applied, {"outcome": "applied"}),
                Sample(taken.known, {"outcome": "known"}),
                Sample(taken.refused, {"outcome": "refused"}),
            ],
        ),
        Family("pages_after_gap_total", "Pages in front of which others are missing.", [Sample(taken.gaps)]),
        Family("event_batches_total", "Batches of servers without journals.", [Sample(posted.batches)]),
        Family("events_total", "Events in these batches.", [Sample(posted.events)]),
        Family("event_gaps_total", "Batches in front of which others are missing.", [Sample(posted.gaps)]),
        Family("usage_bytes", "Shared L2 by salt.", [Sample(used.get(each, 0), _salt(each)) for each in salts]),
        Family("quota_bytes", "What a salt may use.", [Sample(limit, _salt(salt)) for salt, limit in limits]),
        Family("victims_sent_total", "Objects that members are to delete.", [Sample(eviction.sent)]),
        Family("victims_sent_again_total", "Those that had not come back.", [Sample(eviction.sent_again)]),
        Family("victims_under_way", "Those that have neither come back nor were given up.", [Sample(eviction.waiting)]),
        Family("victims_deleted_total", "Those that came back as deleted.", [Sample(eviction.deleted_ever)]),
        Family(
            "condition",
            "1 while it lasts.",
            [
                Sample(1, {"name": each.name, "severity": each.severity.value, "subject": each.subject})
                for each, _ in coordinator.conditions.active()
            ],
        ),
        Family("pinned_chunks", "Chunks that are never evicted.", [Sample(len(coordinator.pins.counts()))]),
    ]


def _salt(salt: str) -> dict[str, str]:
    return {"cache_salt": salt_text(salt)}
