"""What a plugin's own `lmcache` command is handed."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmcache_core.contracts.offer import Offer


class PluginCatalog(Protocol):
    """What the installed plugins offer.  `kind` is a word of `lmcache plugins list`, such as "eviction_policy"."""

    def offers(self, kind: str) -> Sequence[Offer]:
        """Every offer of this kind that can be used, sorted by name."""

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        """Open something that needs settings alone: a policy, a subscriber.  Raises ConfigError for a name that no plugin
        offers and for settings that are not its own."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The command line, as far as a plugin's command may see it."""

    plugins: PluginCatalog


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose flags the shell's completion and the reference know.  An offer's `open` names it, or a plain function
    like `run`.

    A command called `GROUP.WORD` is `lmcache GROUP WORD`."""

    run: Callable[[Sequence[str], CommandContext], int]
    """Takes the arguments after the command's name, and returns the exit code, 0 to 255."""
    parsers: Callable[[], Sequence[ArgumentParser]]
    """Their `prog` is the whole command, such as "lmcache trace replay"."""

    def __call__(self, arguments: Sequence[str], context: CommandContext) -> int:
        return self.run(arguments, context)
