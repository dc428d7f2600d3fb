"""Which plugins are installed, from metadata alone: nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, EntryPoint, PackageMetadata, distributions
from typing import Final, NamedTuple

import lmcache_core
from lmcache_core.contracts.hookspecs import ENTRY_POINT_GROUP

CORE_DISTRIBUTION: Final = "lmcache-core"
_GROUP_FAMILY: Final = "lmcache.plugins."


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
    found = [candidate for provider in _providers() for candidate in _candidates(provider)]
    return sorted(found, key=lambda candidate: (candidate.origin is not Origin.BUILTIN, candidate.name))


class _Provider(NamedTuple):
    """A distribution, and its metadata, which is parsed anew each time that one asks for it."""

    distribution: Distribution
    metadata: PackageMetadata

    @property
    def name(self) -> str:
        """Empty for a leftover folder without metadata."""
        return str(self.metadata["Name"] or "") if self.metadata is not None else ""

    @property
    def requires(self) -> list[str]:
        return self.metadata.get_all("Requires-Dist") or self.distribution.requires or []


def _providers() -> Iterator[_Provider]:
    """The distributions that have plugins.  To parse the metadata of every other one would cost more than all the rest
    of a listing, so each is only asked for the text of its entry points at first."""
    seen = set()
    for distribution in distributions():
        if _GROUP_FAMILY not in _entry_point_text(distribution):
            continue
        name = _normal(_Provider(distribution, distribution.metadata).name)
        if name and name not in seen:
            seen.add(name)
            providers = (_Provider(each, each.metadata) for each in distributions(name=name))
            yield next(provider for provider in providers if provider.name)


def _entry_point_text(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, ValueError):  # somebody's unreadable metadata is no reason not to start
        return ""


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _candidates(provider: _Provider) -> Iterator[Candidate]:
    ours = [entry for entry in _entry_points(provider.distribution) if entry.group.startswith(_GROUP_FAMILY)]
    if not ours:
        return
    is_core = _normal(provider.name) == CORE_DISTRIBUTION
    origin = Origin.BUILTIN if is_core else Origin.ENTRY_POINT
    mismatch = None if is_core else _unmet_requirement(provider.requires)
    for entry in ours:
        other = None if entry.group == ENTRY_POINT_GROUP else _other_contract(entry.group)
        yield Candidate(
            entry.name, entry.value, origin, provider.name, str(provider.metadata["Version"]), other or mismatch
        )


def _entry_points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return list(distribution.entry_points)
    except Exception:  # noqa: BLE001  # somebody's damaged entry_points.txt is no reason not to start
        return []


def _other_contract(group: str) -> str:
    return (
        f"made for contract {group.removeprefix(_GROUP_FAMILY)}, this server has {ENTRY_POINT_GROUP.rpartition('.')[2]}"
    )


def _unmet_requirement(requires: Iterable[str]) -> str | None:
    """What a distribution asks of lmcache-core and does not get."""
    stated = [text for text in requires if _normal(text).startswith(CORE_DISTRIBUTION)]
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
        if _normal(requirement.name) != CORE_DISTRIBUTION or not (
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
    if marker or _normal(asked[:end].strip()) != CORE_DISTRIBUTION or not all(map(_is_plain_bound, bounds)):
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
