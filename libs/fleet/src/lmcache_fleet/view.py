"""The contract of a coordinator's views: what a plugin derives from the journals of all members, with routes of its own.

A plugin offers views with the hook `lmcache_coordinator_views`, which core does not know, so that it is an optional one:

    @hookimpl(optionalhook=True)
    def lmcache_coordinator_views() -> Sequence[Offer]:
        return [Offer("acme", "Counts chunks by model.", "lmcache_acme.view:AcmeView")]

`open(settings) -> CoordinatorView`.  A coordinator opens every view that is installed.  It gives the view `blend` the settings
`chunk_size` and `probe_stride`, from its flags `--blend-*`, and others none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lmcache_core import HttpRoute, KeySpace
from lmcache_fleet.messages import Page

KIND: Final = "coordinator_view"
KEYS: Final = ""
"""The type of pages about keys: they are in the directory, too."""

IsThere = Callable[[KeySpace, bytes], Sequence[bool]]
"""Chunk hashes of one space, one behind the other -> of each, whether the directory knows a place that has it.  Any thread."""


@dataclass(frozen=True, slots=True)
class Question(HttpRoute):
    """A POST that changes nothing: tokens with the scopes `read` and `member` may ask it, too."""

    body_bytes_max: int = 8 << 20


class CoordinatorView(ABC):
    """Like the directory, it may be lost at any time: a coordinator that starts asks members for everything again.

    `take` and `forget` are called on the threads that answer members: those of one member one at a time, those of others
    meanwhile.  Only the journals of the member are locked.  They must return soon.  What they raise is logged, and has no
    effect on what the coordinator answers."""

    types: ClassVar[frozenset[str]] = frozenset((KEYS,))
    """Of pages that it gets.  Members send the types that a view asks for."""

    def begin(self, is_there: IsThere) -> None:  # noqa: B027 - many do not ask the directory
        """Called once, before anything is taken."""

    def refusal(self, metadata: Mapping[str, Any]) -> str:
        """Why a server that says this of itself cannot be a member, with the remedy; empty: it can.  Any thread."""
        return ""

    def figures(self) -> Mapping[str, int]:
        """What `/directory/stats` says under the view's name.  Any thread."""
        return {}

    @abstractmethod
    def take(self, page: Page, skip: int) -> None:
        """A page that was admitted: of each source in order, without gaps, and without its first `skip` keys, which came
        before.  The pages of a snapshot come in order from the first; the last completes it.  A shared source has no order
        between members."""

    @abstractmethod
    def forget(self, instance: str) -> None:
        """The instance has left, or has started anew.  Its pages come again from the first, if it comes back."""

    def routes(self) -> Sequence[HttpRoute]:
        """Answered by the coordinator, beside its own.  Asked for once."""
        return ()

    def close(self) -> None:  # noqa: B027 - many have nothing to close
        """The coordinator ends; nothing else is called any more."""
