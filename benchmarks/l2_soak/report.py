"""A run in words."""

from __future__ import annotations

from benchmarks.l2_soak.recipes import MIB
from benchmarks.l2_soak.run import L2Soak


def text(done: L2Soak) -> str:
    """Markdown."""
    books, tally = done.books, done.tally
    chunks, store, eviction = books["chunks"], books["store"], books["l2_eviction"]
    moved = done.sizes.chunk_bytes / MIB / max(done.seconds, 1e-9)
    head = (
        f"`{done.recipe}` with `{done.adapter}`, {done.seconds:g} s ({done.started_at[:10]}, commit "
        f"{done.machine.get('commit', 'unknown')}): {done.engines} engines sent {tally.requests:,} requests and read "
        f"{tally.read:,} chunks ({tally.read * moved:,.0f} MiB/s), every byte compared."
    )
    rows = [
        ("within their capacities throughout", f"{'yes' if done.within else 'NO'}, {done.taken:,} samples"),
        ("most in L1", _of(done.highest["l1_bytes"], done.sizes.l1_bytes)),
        ("most in L2, by its books", _of(done.highest["l2_bytes"], done.sizes.l2_bytes)),
        ("most in L2, by the disk", _of(done.highest["disk_bytes"], done.sizes.l2_bytes)),
        ("chunks asked for", f"{tally.asked:,}"),
        ("hit, in L1 / loaded from L2", f"{chunks['hit']:,} ({chunks['hit_l1']:,} / {chunks['loaded_from_l2']:,})"),
        ("hit and gone when fetched", f"{tally.lost:,}"),
        ("stored in L1 / in L2", f"{chunks['stored']:,} / {store['stored']:,}"),
        ("evicted from L1 / from L2", f"{books['l1_evicted']:,} / {eviction['evicted']:,}"),
        ("written to L2", f"{store['stored_bytes'] / MIB / max(done.seconds, 1e-9):,.0f} MiB/s"),
        ("refused for want of room in L1", f"{chunks['refused']:,}"),
        ("dropped on the way to L2", f"{store['dropped']:,} {_reasons(store['dropped_by_reason'])}"),
        ("not taken by L2", f"{store['failed']:,} {_reasons(store['failed_by_outcome'])}"),
        ("leases left", f"{books['l1_leases']:,}"),
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | {value.strip()} |" for name, value in rows)]
    return "\n\n".join([head, "\n".join(lines), f"Complaints: {'; '.join(done.complaints[:10]) or 'none'}."])


def _of(size: int, capacity: int) -> str:
    return f"{size / MIB:,.0f} of {capacity / MIB:,.0f} MiB ({size / capacity:.1%})"


def _reasons(counts: dict[str, int]) -> str:
    return f"({', '.join(f'{name} {count:,}' for name, count in sorted(counts.items()))})" if counts else ""
