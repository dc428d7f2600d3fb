"""Which plugins are installed, from metadata alone: nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, PackageMetadata, distributions
from typing import Final, NamedTuple

from lmcache_core.app.plugins.core_requirement import CORE_DISTRIBUTION, normal_name, unmet_requirement
from lmcache_core.contracts.hookspecs import ENTRY_POINT_GROUP

__all__ = ["CORE_DISTRIBUTION", "Candidate", "Origin", "discover"]

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
    damage: str | None = None
    """Why nothing is known of it: its metadata cannot be read.  `module` is the folder of that metadata then."""

    @property
    def owner(self) -> str:
        """For messages: the distribution and its version, the module, or the folder of damaged metadata."""
        if self.damage:
            return self.module
        return f"{self.distribution} {self.version}" if self.distribution else f"module {self.module}"


def discover() -> list[Candidate]:
    """Every plugin of every installed distribution, core's own first, then by name.

    A distribution that is on the path twice counts once: the first one, as for an import."""
    seen: set[str] = set()
    found = [candidate for each in _distributions() for candidate in _candidates_of(each, seen)]
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


def _distributions() -> Iterator[Distribution]:
    """Those that have plugins.  To parse the metadata of every other one would cost more than all the rest of a listing,
    so each is only asked for the text of its entry points at first."""
    return (distribution for distribution in distributions() if _GROUP_FAMILY in _entry_point_text(distribution))


def _entry_point_text(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:  # whether it is one of ours can still be seen
        return bytes(error.object).decode(errors="replace")
    except (OSError, ValueError):  # somebody's unreadable metadata is no reason not to start
        return ""


def _provider(distribution: Distribution, seen: set[str]) -> _Provider | None:
    """The first distribution of that name on the path, as for an import; None for one that was met before, and for a
    leftover folder."""
    own = _Provider(distribution, distribution.metadata)
    name = normal_name(own.name)
    if not name or name in seen:
        return None
    seen.add(name)
    namesakes = (_Provider(each, each.metadata) for each in distributions(name=name))
    return next((provider for provider in namesakes if provider.name), own)


def _candidates_of(distribution: Distribution, seen: set[str]) -> list[Candidate]:
    try:
        provider = _provider(distribution, seen)
        return list(_candidates(provider)) if provider else []
    except Exception as error:  # noqa: BLE001  # one damaged distribution is a row in the list, and no harm to the others
        return [_damaged(distribution, error)]


def _damaged(distribution: Distribution, error: Exception) -> Candidate:
    """Called after its folder, since its plugins are not known; the distribution's name is known at times."""
    folder = str(getattr(distribution, "_path", "a distribution"))
    try:
        name = _Provider(distribution, distribution.metadata).name
        file = "entry_points.txt"
    except Exception:  # noqa: BLE001  # that is what is wrong with it
        name, file = "", "METADATA"
    # what the standard library raises for a line without a value speaks of its own code
    fault = "a line is not 'name = value'" if isinstance(error, TypeError) else " ".join(str(error).split())[:200]
    own = folder.rpartition("/")[2].removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
    return Candidate(
        own, folder, Origin.ENTRY_POINT, name or None, damage=f"its metadata cannot be read: {file}: {fault}"
    )


def _candidates(provider: _Provider) -> Iterator[Candidate]:
    ours = [entry for entry in provider.distribution.entry_points if entry.group.startswith(_GROUP_FAMILY)]
    is_core = normal_name(provider.name) == CORE_DISTRIBUTION
    origin = Origin.BUILTIN if is_core else Origin.ENTRY_POINT
    mismatch = None if is_core or not ours else unmet_requirement(provider.requires)
    version = str(provider.metadata["Version"] or "0")
    for entry in ours:
        other = None if entry.group == ENTRY_POINT_GROUP else _other_contract(entry.group)
        yield Candidate(entry.name, entry.value, origin, provider.name, version, other or mismatch)


def _other_contract(group: str) -> str:
    return (
        f"made for contract {group.removeprefix(_GROUP_FAMILY)}, this server has {ENTRY_POINT_GROUP.rpartition('.')[2]}"
    )
