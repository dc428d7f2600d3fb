"""Which plugins are installed, from metadata alone, and what is known of each: nothing is imported here."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.metadata import Distribution, distributions
from typing import Final, NamedTuple

import lmcache_core
from lmcache_core.app.plugins.offer_kind import Offered
from lmcache_core.contracts.hookspecs import ENTRY_POINT_GROUP
from lmcache_core.contracts.offer import SettingGroup

_GROUP_FAMILY: Final = "lmcache.plugins."


class Origin(StrEnum):
    """How a plugin came to be known."""

    BUILTIN = "builtin"
    ENTRY_POINT = "entry point"
    COMMAND_LINE = "command line"


class Candidate(NamedTuple):
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
    every: dict[str, list[Distribution]] = defaultdict(list)
    for distribution in distributions():
        every[_folder(distribution).rpartition("/")[2].partition("-")[0].lower()].append(distribution)
    seen: set[str] = set()
    found: list[Candidate] = []
    for same in every.values():
        # To parse the metadata of every distribution would cost more than all the rest of a listing.
        if any(_GROUP_FAMILY in _entry_point_text(each) for each in same):
            found += _candidates_of(same, seen)
    return sorted(found, key=lambda candidate: (candidate.origin is not Origin.BUILTIN, candidate.name))


def _folder(distribution: Distribution) -> str:
    """Where its metadata is."""
    return str(getattr(distribution, "_path", "a distribution"))


def _entry_point_text(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:  # whether it is one of ours can still be seen
        return bytes(error.object).decode(errors="replace")
    except (OSError, ValueError):  # unreadable metadata of one distribution must not stop the start
        return ""


def _candidates_of(same: Sequence[Distribution], seen: set[str]) -> Iterator[Candidate]:
    """The plugins of the first distribution that is not a leftover folder without metadata."""
    for distribution in same:
        name = ""
        try:
            metadata = _headers(distribution)
            name = metadata["name"][0] if metadata["name"] else ""
            if not name:
                continue
            if normal_name(name) not in seen:
                yield from list(_candidates(distribution, metadata, name))
            seen.add(normal_name(name))
        except Exception as error:  # noqa: BLE001  # one damaged distribution is a row in the list, and no harm to the others
            yield _damaged(distribution, name, error)
        return


def _headers(distribution: Distribution) -> Mapping[str, Sequence[str]]:
    """Values by name in lower case.  The parser of the standard library is one for mail, and slows a listing down."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    headers: dict[str, list[str]] = defaultdict(list)
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        headers[name.lower()].append(value.strip())
    return headers


def _damaged(distribution: Distribution, name: str, error: Exception) -> Candidate:
    """Called after its folder, since its plugins are not known; the distribution's name is known at times."""
    folder = _folder(distribution)
    file = "entry_points.txt" if name else "METADATA"
    # what the standard library raises for a line without a value speaks of its own code
    fault = "a line is not 'name = value'" if isinstance(error, TypeError) else " ".join(str(error).split())[:200]
    own = folder.rpartition("/")[2].removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
    return Candidate(
        own, folder, Origin.ENTRY_POINT, name or None, damage=f"its metadata cannot be read: {file}: {fault}"
    )


def _candidates(distribution: Distribution, metadata: Mapping[str, Sequence[str]], name: str) -> Iterator[Candidate]:
    is_core = normal_name(name) == CORE_DISTRIBUTION
    origin = Origin.BUILTIN if is_core else Origin.ENTRY_POINT
    requires = metadata["requires-dist"] or distribution.requires or []
    mismatch = None if is_core else unmet_requirement(requires)
    version = next(iter(metadata["version"]), "0")
    here = ENTRY_POINT_GROUP.removeprefix(_GROUP_FAMILY)
    for entry in distribution.entry_points:
        if entry.group.startswith(_GROUP_FAMILY):
            made_for = entry.group.removeprefix(_GROUP_FAMILY)
            other = f"made for contract {made_for}, this server has {here}" if made_for != here else mismatch
            yield Candidate(entry.name, entry.value, origin, name, version, other)


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


_PLAIN: Final = re.compile(r"lmcache[-_.]core((?:,?(?:>=|<)\d+(?:\.\d+)*)+)", re.ASCII)
_BOUND: Final = re.compile(r"(>=|<)([\d.]+)")
_FOR_AN_EXTRA: Final = re.compile(r"[^;]*; *extra *== *[^ ]+ *")


def _is_plainly_met(requirement: str) -> bool:
    """True where a glance is enough to see that the requirement is met or does not apply; False says nothing.

    A glance is enough for `lmcache-core<0.2,>=0.1`, which is what nearly every plugin asks for, in any order and without a
    marker, and for what only an extra asks for."""
    if _FOR_AN_EXTRA.fullmatch(requirement):
        return True
    found, version = _PLAIN.fullmatch(requirement), lmcache_core.__version__
    if found is None or not version.replace(".", "").isdecimal():
        return False
    return all((_numbers(version) >= _numbers(bound)) is (sign == ">=") for sign, bound in _BOUND.findall(found[1]))


def _numbers(version: str) -> list[int]:
    """Without zeros at the end, which do not count: 0.1 is 0.1.0."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


SLOW_SETUP_MS: Final = 100.0
"""A plugin module imports in a few milliseconds, and its hooks do nothing but name things; every start pays for it."""


class Status(StrEnum):
    ACTIVE = "active"
    """Something it offers is in use, or would be without being named."""
    AVAILABLE = "available"
    """Loaded; in use once the configuration names what it offers."""
    BLOCKED = "blocked"
    """Passed over because of --plugin, --no-plugin or --safe-mode.  Not imported."""
    INCOMPATIBLE = "incompatible"
    """Made for another contract or another lmcache-core.  Not imported."""
    BROKEN = "broken"
    """Cannot be imported, or breaks the contract."""
    DUPLICATE = "duplicate"
    """Two distributions have a plugin of this name.  Neither was imported."""


class PluginRow(NamedTuple):
    """One line of `lmcache plugins list`.  `error` says in one line what is wrong, `remedy` what to do about it."""

    candidate: Candidate
    status: Status
    offers: tuple[Offered, ...] = ()
    groups: tuple[SettingGroup, ...] = ()
    error: str | None = None
    remedy: str | None = None
    setup_ms: float | None = None
    """Time by the clock for its import and its hooks; None where it was not imported."""
    conflicts: tuple[str, ...] = ()
    """A sentence for each of its offers whose name another plugin has, too."""
    traceback: str | None = None
    """All of the error, where an exception of the plugin is the reason."""

    @property
    def slowness(self) -> str | None:
        """A sentence where setting it up took too long."""
        if self.setup_ms is None or self.setup_ms <= SLOW_SETUP_MS:
            return None
        return (
            f"took {self.setup_ms:.0f} ms to set up, more than {SLOW_SETUP_MS:.0f} ms, at every start; "
            "its module should import its libraries where it opens what it offers"
        )

    @property
    def unusable(self) -> bool:
        return self.status in (Status.INCOMPATIBLE, Status.BROKEN, Status.DUPLICATE)

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"plugin '{self.candidate.name}' ({self.candidate.owner}) is {self.status}: {self.error}{remedy}"
