"""The outcome as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_policies.simulate.outcome import Outcome


def as_table(outcome: Outcome) -> str:
    """Hit rates in percent, a line per policy and a column per capacity, the clairvoyant last."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    trace = outcome.trace
    yield (
        f"{trace.path}: {trace.requests:,} requests, {len(trace.blocks):,} blocks, {trace.distinct:,} distinct; "
        f"{_percent(outcome, len(trace.blocks) - trace.distinct)} % were there before"
    )
    yield ""
    capacities = outcome.capacities
    rows = [
        ["capacity", *(capacity.text for capacity in capacities)],
        ["in blocks", *(f"{capacity.blocks:,}" for capacity in capacities)],
    ]
    for contender, results in outcome.policies:
        marked = [outcome.best_hits(column) == result.hits for column, result in enumerate(results)]
        cells = [f"{_percent(outcome, r.hits)}{'*' * best}" for r, best in zip(results, marked, strict=True)]
        rows.append([contender.label, *cells])
    rows.append(["clairvoyant", *(_percent(outcome, foresight.hits) for foresight in outcome.clairvoyant)])
    if not outcome.exact:
        rows.append(["no policy more than", *(_percent(outcome, f.at_most) for f in outcome.clairvoyant)])
    yield from _aligned(rows)
    yield ""
    yield "Hits in % of the blocks that requests asked for; * is the best policy of a column.  The clairvoyant knows the"
    yield (
        "future: nothing hits more."
        if outcome.exact
        else "future; blocks of this trace do not always follow the same block, so that it may miss the optimum."
    )


def _percent(outcome: Outcome, hits: int) -> str:
    return f"{100 * outcome.rate(hits):.1f}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Numbers are under each other, marked or not."""
    rows = [[row[0], *(cell if cell.endswith("*") else f"{cell} " for cell in row[1:])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
