"""Which plugins are installed, from metadata alone: nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, EntryPoint, distributions

import lmcache_core
from lmcache_core.contracts.hookspecs import ENTRY_POINT_GROUP

CORE_DISTRIBUTION = "lmcache-core"
_GROUP_FAMILY = "lmcache.plugins."


class Origin(StrEnum):
    """How a plugin came to be known."""

    BUILTIN = "builtin"
    ENTRY_POINT = "entry point"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that could be loaded.  `mismatch` says why it must not be: it was made for another contract."""

    name: str
    module: str
    origin: Origin
    distribution: str | None = None
    version: str | None = None
    mismatch: str | None = None

    @property
    def owner(self) -> str:
        """For messages: the distribution and its version, or the module."""
        return f"{self.distribution} {self.version}" if self.distribution else f"module {self.module}"


def discover() -> list[Candidate]:
    """Every plugin of every installed distribution, core's own first, then by name.

    A distribution that is on the path twice counts once: the first one, as for an import."""
    found = [candidate for each in _installed() for candidate in _candidates(each)]
    return sorted(found, key=lambda candidate: (candidate.origin is not Origin.BUILTIN, candidate.name))


def _installed() -> Iterator[Distribution]:
    seen = set()
    for distribution in distributions():
        name = _normal(_name_of(distribution))
        if name and name not in seen:
            seen.add(name)
            yield distribution


def _name_of(distribution: Distribution) -> str:
    """Empty for a leftover folder without metadata."""
    metadata = distribution.metadata
    return str(metadata["Name"] or "") if metadata is not None else ""


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _candidates(distribution: Distribution) -> Iterator[Candidate]:
    ours = [entry for entry in _entry_points(distribution) if entry.group.startswith(_GROUP_FAMILY)]
    if not ours:
        return
    name, version = _name_of(distribution), distribution.version
    is_core = _normal(name) == CORE_DISTRIBUTION
    mismatch = None if is_core else _unmet_requirement(distribution)
    for entry in ours:
        other = None if entry.group == ENTRY_POINT_GROUP else _other_contract(entry.group)
        origin = Origin.BUILTIN if is_core else Origin.ENTRY_POINT
        yield Candidate(entry.name, entry.value, origin, name, version, other or mismatch)


def _entry_points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return list(distribution.entry_points)
    except Exception:  # noqa: BLE001  # somebody's damaged entry_points.txt is no reason not to start
        return []


def _other_contract(group: str) -> str:
    return (
        f"made for contract {group.removeprefix(_GROUP_FAMILY)}, this server has {ENTRY_POINT_GROUP.rpartition('.')[2]}"
    )


def _unmet_requirement(distribution: Distribution) -> str | None:
    """What the distribution asks of lmcache-core and does not get."""
    stated = [text for text in distribution.requires or () if _normal(text).startswith(CORE_DISTRIBUTION)]
    if not stated:
        return None
    # here, so that a server without plugins does not pay for the parser
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    here = Version(lmcache_core.__version__)
    for text in stated:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return f"its requirement '{text}' cannot be read"
        if _normal(requirement.name) != CORE_DISTRIBUTION or not (
            requirement.marker is None or requirement.marker.evaluate()
        ):
            continue
        allowed = requirement.specifier
        # a pre-release of 0.2.0 has what 0.2.0 promises, although it sorts before it
        if not (allowed.contains(here, prereleases=True) or allowed.contains(here.base_version)):
            return f"requires {CORE_DISTRIBUTION}{allowed}, this is {here}"
    return None
