"""A selector by its name, and its choice, checked."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import numpy as np

from lmcache_blend_select.contract import Facts, Run, Selector

GROUP: Final = "lmcache.blend_selectors.v1"


class SelectorError(ValueError):
    """A selector that is not there, cannot be used, or chose what it may not."""


def available() -> tuple[str, ...]:
    """Names of the selectors that are installed."""
    return tuple(sorted({each.name for each in entry_points(group=GROUP)}))


def selector(name: str) -> Selector:
    """Import the selector of this name.  Raises SelectorError, which names it and those that there are."""
    found = [each for each in entry_points(group=GROUP) if each.name == name]
    if not found:
        raise SelectorError(f"no blend selector is called '{name}'; installed: {', '.join(available())}")
    if len(found) > 1:
        owners = " and ".join(sorted(map(_owner, found)))
        raise SelectorError(f"the blend selector '{name}' is offered by {owners}; uninstall all but one of them")
    try:
        loaded = found[0].load()
    except Exception as error:
        raise SelectorError(
            f"the blend selector '{name}' of {_owner(found[0])} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(loaded, Selector):
        raise SelectorError(
            f"the blend selector '{name}' of {_owner(found[0])} is of the type {type(loaded).__name__}, not a Selector"
        )
    return loaded


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def budget(chosen: Selector, ratio: float, tokens: int) -> int:
    """How many of `tokens` reused ones it may choose, where `ratio` of them is set."""
    return round((ratio if chosen.ratio is None else chosen.ratio) * tokens)


def select(chosen: Selector, facts: Facts) -> tuple[Run, ...]:
    """Its choice; runs that adjoin are one.  Raises SelectorError for a choice that it may not make, or without the facts
    that it needs; and whatever the selector raises."""
    missing = [need.value for need in sorted(chosen.needs) if getattr(facts, need.value) is None]
    if missing:
        raise SelectorError(f"a blend selector that needs {' and '.join(missing)}, which the facts have not")
    runs: list[Run] = []
    for run in chosen.choose(facts):
        start, end = map(int, run)
        if not (start < end and (not runs or runs[-1].end <= start)):
            raise SelectorError(
                f"a blend selector chose tokens {start} to {end} behind {runs[-1:]}: not ascending runs"
            )
        if runs and runs[-1].end == start:
            runs[-1] = Run(runs[-1].start, end)
        else:
            runs.append(Run(start, end))
    _check_within(runs, facts)
    return tuple(runs)


def _check_within(runs: list[Run], facts: Facts) -> None:
    count = sum(run.end - run.start for run in runs)
    if count > facts.budget:
        raise SelectorError(f"a blend selector chose {count} tokens; its budget was {facts.budget}")
    tokens = np.concatenate([np.arange(run.start, run.end) for run in runs] or [np.arange(0)])
    outside = tokens[~np.isin(tokens, facts.positions())]
    if len(outside):
        raise SelectorError(f"a blend selector chose token {outside[0]}, which is in no segment")
