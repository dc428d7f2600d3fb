"""Which policies compete, and how each is made anew for every replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lmcache_core import (
    ConfigError,
    EvictionDemand,
    EvictionPolicy,
    HashChain,
    InsertFacts,
    KeySpace,
    LMCacheError,
    PluginCatalog,
)

_KIND: Final = "eviction_policy"
_FIRST: Final = "LRU"
"""The policy that others are measured against comes first."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Unique among contenders that differ."""
        return " ".join([self.name, *(f"{key}={_plain(value)}" for key, value in self.settings.items())])

    def open(self, plugins: PluginCatalog) -> EvictionPolicy:
        """A policy that knows nothing yet.  Raises ConfigError, and PluginError for one that cannot be used."""
        policy = plugins.open(_KIND, self.name, self.settings)
        assert isinstance(policy, EvictionPolicy)
        return policy


def parse_contender(text: str) -> Contender:
    """A name, or a JSON object with a `type`.  Raises ConfigError for any other text."""
    if not text.lstrip().startswith("{"):
        return Contender(text.strip())
    try:
        given = json.loads(text, object_pairs_hook=_object)
    except ValueError as error:
        raise ConfigError(f"--policy {text}: not a JSON object: {error}") from None
    name = given.pop("type", None)
    if not isinstance(name, str):
        raise ConfigError(f'--policy {text}: expected a name, or an object such as {{"type": "{_FIRST}"}}')
    return Contender(name, given)


def choose(
    plugins: PluginCatalog, wanted: Sequence[str], everything: bool, on_left_out: Callable[[str], None]
) -> tuple[Contender, ...]:
    """Those that are `wanted`, each once; without any, or where `everything` is, the installed ones.

    An installed one that was not named is left out, and `on_left_out` called with the reason, if it cannot be opened without
    settings, or (unless `everything`) if it evicts nothing.  A named one that cannot be opened raises what opening it
    raises."""
    named = [parse_contender(text) for text in wanted]
    for contender in named:
        contender.open(plugins)
    installed = sorted((offer.name for offer in plugins.offers(_KIND)), key=lambda name: (name != _FIRST, name))
    others = []
    for contender in map(Contender, installed) if everything or not wanted else ():
        try:
            policy = contender.open(plugins)
        except LMCacheError as error:
            on_left_out(f"{contender.label} is left out: {error}")
            continue
        if everything or _evicts(policy):
            others.append(contender)
        else:
            on_left_out(f"{contender.label} is left out: it evicts nothing (--all-policies takes it)")
    return tuple({contender.label: contender for contender in [*named, *others]}.values())


def _evicts(policy: EvictionPolicy) -> bool:
    """Does it name the one object there is when one has to go?  A policy that fails here fails in its replay, where it
    is reported."""
    space = KeySpace("probe", 0, 0, "", 1, HashChain.BLAKE3, bytes(16))
    try:
        policy.on_insert((0,), InsertFacts(1, space, 0, (b"probe",)))
        return len(policy.victims(EvictionDemand(1, {}), {0}.__contains__)) > 0
    except Exception:  # noqa: BLE001  a plugin boundary
        return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"key '{twice}' is given twice")
    return dict(pairs)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
