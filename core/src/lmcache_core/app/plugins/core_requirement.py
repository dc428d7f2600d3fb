"""What a plugin's distribution asks of lmcache-core, and whether it gets it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import lmcache_core

CORE_DISTRIBUTION: Final = "lmcache-core"


def normal_name(name: str) -> str:
    """As package indexes compare names."""
    return name.lower().replace("_", "-").replace(".", "-")


def unmet_requirement(requires: Iterable[str]) -> str | None:
    """What a distribution asks of lmcache-core and does not get."""
    stated = [text for text in requires if normal_name(text).startswith(CORE_DISTRIBUTION)]
    if all(_is_plainly_met(text) for text in stated):
        return None
    # here, because the parser costs more than everything else in this file
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    here = Version(lmcache_core.__version__)
    for text in stated:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return f"its requirement '{text}' cannot be read"
        if normal_name(requirement.name) != CORE_DISTRIBUTION or not (
            requirement.marker is None or requirement.marker.evaluate()
        ):
            continue
        allowed = requirement.specifier
        # a pre-release of 0.2.0 has what 0.2.0 promises, although it sorts before it
        if not (allowed.contains(here, prereleases=True) or allowed.contains(here.base_version)):
            return f"requires {CORE_DISTRIBUTION}{allowed}, this is {here}"
    return None


def _is_plainly_met(requirement: str) -> bool:
    """True where a glance is enough to see that the requirement is met or does not apply; False says nothing.

    A glance is enough for `lmcache-core<0.2,>=0.1`, which is what nearly every plugin asks for, in any order and without a
    marker, and for what only an extra asks for."""
    asked, _, marker = requirement.partition(";")
    if marker.split()[:2] == ["extra", "=="] and len(marker.split()) == 3:
        return True
    end = min((asked.find(sign) for sign in "<>" if sign in asked), default=len(asked))
    bounds = [bound.strip() for bound in asked[end:].split(",")]
    if marker or normal_name(asked[:end].strip()) != CORE_DISTRIBUTION or not all(map(_is_plain_bound, bounds)):
        return False
    here = _numbers(lmcache_core.__version__)
    return all(
        here >= _numbers(bound[2:]) if bound.startswith(">=") else here < _numbers(bound[1:]) for bound in bounds
    )


def _is_plain_bound(bound: str) -> bool:
    version = bound[2:] if bound.startswith(">=") else bound.removeprefix("<")
    return version != bound and _is_plain_version(version) and _is_plain_version(lmcache_core.__version__)


def _is_plain_version(text: str) -> bool:
    return all(part.isdecimal() for part in text.split("."))


def _numbers(version: str) -> tuple[int, ...]:
    """Without zeros at the end, which do not count: 0.1 is 0.1.0."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
