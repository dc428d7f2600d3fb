"""Metrics of peers: what was asked of each, and what each has asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lmcache_core import Sample, SampleKind

LOOKUPS: Final = SampleKind(
    "lmcache.peers.lookup.objects",
    "{object}",
    "Objects that a peer was asked for: leased, stale (the directory named it and it has them no longer), refused, unanswered.",
    True,
    ("peer", "outcome"),
)
HITS: Final = SampleKind(
    "lmcache.peers.lookup.hits", "{object}", "Objects that lookups have found at a peer.", True, ("peer",)
)
READS: Final = SampleKind(
    "lmcache.peers.read.objects",
    "{object}",
    "Objects that were to be read from a peer: read, damaged (not what key, header and digest say), unread.",
    True,
    ("peer", "outcome"),
)
READ_BYTES: Final = SampleKind(
    "lmcache.peers.read.size", "By", "Bytes of objects that were read from a peer.", True, ("peer",)
)
READ_SECONDS: Final = SampleKind(
    "lmcache.peers.read.time",
    "s",
    "How long reads from a peer took, with digests; reads at a time add up.",
    True,
    ("peer",),
)
FAILURES: Final = SampleKind(
    "lmcache.peers.failures",
    "{failure}",
    "How often a peer was set aside for a while: no answer or a wrong one, another chunk size or hash, damaged objects.",
    True,
    ("peer",),
)
SERVED: Final = SampleKind(
    "lmcache.peers.served.objects",
    "{object}",
    "Objects that a peer has asked this server for: leased, absent, limited (here, beyond the share of L1 that may be leased).",
    True,
    ("peer", "outcome"),
)
EXPIRED: Final = SampleKind(
    "lmcache.peers.served.expired",
    "{object}",
    "Leased objects whose deadline came before the peer gave them back.",
    True,
    ("peer",),
)
BAD: Final = SampleKind(
    "lmcache.peers.requests.bad",
    "{request}",
    "Requests of a peer that could not be read, asked for too much, or for what is not the peer's.",
    True,
    ("peer",),
)
REFUSED: Final = SampleKind(
    "lmcache.peers.refused", "{connection}", "Handshakes and requests of keys that are not members'.", True
)
LEASED: Final = SampleKind("lmcache.peers.leased.size", "By", "Bytes of L1 that are leased to peers now.", False)
MEMBERS: Final = SampleKind("lmcache.peers.members", "{server}", "Members of the fleet that are let in.", False)
KINDS: Final = (
    *(LOOKUPS, HITS, READS, READ_BYTES, READ_SECONDS, FAILURES),
    *(SERVED, EXPIRED, BAD, REFUSED, LEASED, MEMBERS),
)


def reader_samples(counts: Mapping[str, Mapping[str, float]]) -> Iterable[Sample]:
    """`counts`: of each peer.  Equations: asked = leased + stale + refused + unanswered, and submitted = read + damaged +
    unread, once nothing is under way."""
    for peer, own in counts.items():
        for outcome in ("leased", "stale", "refused", "unanswered"):
            yield LOOKUPS.of(own.get(outcome, 0), peer, outcome)
        for outcome in ("read", "damaged", "unread"):
            yield READS.of(own.get(outcome, 0), peer, outcome)
        yield HITS.of(own.get("hit", 0), peer)
        yield READ_BYTES.of(own.get("read_bytes", 0), peer)
        yield READ_SECONDS.of(own.get("read_seconds", 0), peer)
        yield FAILURES.of(own.get("failed", 0), peer)


def owner_samples(counts: Mapping[str, Mapping[str, int]]) -> Iterable[Sample]:
    """Equation: asked = leased + absent + limited, once nothing is under way."""
    for peer, own in counts.items():
        if not peer:
            yield REFUSED.of(own.get("refused", 0))
            continue
        for outcome in ("leased", "absent", "limited"):
            yield SERVED.of(own.get(outcome, 0), peer, outcome)
        yield EXPIRED.of(own.get("expired", 0), peer)
        yield BAD.of(own.get("bad", 0), peer)
