"""Connects plugins through pluggy and asks them what they offer, one at a time.

pluggy stops at the first hook it does not know, passes over a function that is not decorated, and loses everybody's
answers when one plugin raises.  Here each plugin is looked at before it is registered, and each is called alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import Parameter, signature
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pluggy

from lmcache_core.app.plugins.hook_trace import HookTrace
from lmcache_core.app.plugins.offer_check import check_groups, check_offers
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_modules import describe
from lmcache_core.contracts import hookspecs
from lmcache_core.contracts.offer import Offer, SettingGroup
from lmcache_core.model.errors import PluginContractError
from lmcache_core.model.spelling import nearest

_PREFIX = f"{hookspecs.PROJECT}_"
_SETTINGS = "lmcache_settings"


@dataclass(frozen=True, slots=True)
class Offered:
    """One answer to one hook."""

    kind: OfferKind
    offer: Offer


class Connected(NamedTuple):
    """What a plugin returned when it was connected."""

    offers: tuple[Offered, ...]
    groups: tuple[SettingGroup, ...]


class PluginHooks:
    """The connected plugins.  Used while the server starts and stops, by the thread that does that."""

    def __init__(self, trace: HookTrace | None = None) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        if trace:
            trace.watch(self._manager)

    def connect(self, name: str, module: ModuleType) -> Connected:
        """Register a plugin and collect its offers and its settings.  Raises PluginContractError for one that breaks the
        contract, which is not registered then."""
        _check_names(name, module)
        if other := self._manager.get_name(module):
            raise PluginContractError(name, f"module {module.__name__} is that of plugin '{other}', too")
        try:
            self._manager.register(module, name)
        except pluggy.PluginValidationError as error:
            self._forget(name)  # older versions of pluggy leave it half registered
            raise PluginContractError(name, " ".join(str(error).split())) from error
        try:
            hooks = {caller.name for caller in self._manager.get_hookcallers(module) or ()}
            offers = tuple(offered for kind in OfferKind if kind.hook in hooks for offered in self._offers(name, kind))
            return Connected(offers, self._groups(name) if _SETTINGS in hooks else ())
        except PluginContractError:
            self._forget(name)
            raise

    def call(self, name: str, hook: str, **arguments: Any) -> list[Any]:
        """One plugin's answers to one hook: none, or one.  What the plugin raises passes through."""
        others = [plugin for other, plugin in self._manager.list_name_plugin() if other != name]
        caller = self._manager.subset_hook_caller(hook, others)
        answers: list[Any] = caller(**arguments)
        return answers

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._manager.list_name_plugin()]

    def hooks_of(self, name: str) -> list[str]:
        """The hooks that a plugin has a function for, sorted; none for one that is not connected."""
        module = self._manager.get_plugin(name)
        return sorted(caller.name for caller in self._manager.get_hookcallers(module) or ()) if module else []

    def _forget(self, name: str) -> None:
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)

    def _offers(self, name: str, kind: OfferKind) -> Iterable[Offered]:
        offers = self._answer(name, kind.hook, Offer)
        check_offers(name, kind, offers)
        return [Offered(kind, offer) for offer in offers]

    def _groups(self, name: str) -> tuple[SettingGroup, ...]:
        groups = self._answer(name, _SETTINGS, SettingGroup)
        check_groups(name, _SETTINGS, groups)
        return tuple(groups)

    def _answer(self, name: str, hook: str, wanted: type) -> list[Any]:
        """What the plugin's hook returned, a list.  Raises PluginContractError."""
        try:
            answers = self.call(name, hook)
            answer = None if not answers else answers[0] if isinstance(answers[0], wanted) else list(answers[0])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginContractError(name, f"{hook} failed: {describe(error)}") from error
        if not isinstance(answer, list):
            what = "nothing" if answer is None else f"{'an' if wanted is Offer else 'a'} {wanted.__name__}"
            raise PluginContractError(name, f"{hook} returned {what}; it must return a list of {wanted.__name__}")
        return answer


def _known_hooks() -> list[str]:
    return [word for word, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]


def _check_names(name: str, module: ModuleType) -> None:
    """Raise PluginContractError for what pluggy would pass over in silence, or find too late."""
    known = _known_hooks()
    hooks = [(word, value) for word, value in vars(module).items() if _is_meant_as_hook(word, value)]
    if not hooks:
        raise PluginContractError(name, f"module {module.__name__} has no hook; known: {', '.join(known)}")
    for word, value in hooks:
        marks = _marks(value)
        hook = (marks and marks.get("specname")) or word
        if hook in known and marks is None:
            raise PluginContractError(name, f"{word} is not decorated with @hookimpl and would never be called")
        if hook not in known and not (marks and marks.get("optionalhook")):
            # without the prefix, which would make any two hooks look alike
            guess = nearest(hook.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known])
            remedy = f"did you mean {_PREFIX}{guess}?" if guess else f"known: {', '.join(known)}"
            raise PluginContractError(name, f"no hook is called {hook}; {remedy}")
        if hook in known:
            _check_arguments(name, word, value, _required(getattr(hookspecs, hook)))


def _check_arguments(name: str, word: str, function: FunctionType, given: list[str]) -> None:
    for argument in _required(function):
        if argument not in given:
            raise PluginContractError(
                name,
                f"{word} takes '{argument}', which it is not given; it is called with: {', '.join(given) or '(nothing)'}",
            )


def _required(function: FunctionType) -> list[str]:
    """The arguments that pluggy passes: those by position that have no default."""
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature(function).parameters.values()
    return [each.name for each in parameters if each.kind in by_position and each.default is Parameter.empty]


def _is_meant_as_hook(word: str, value: object) -> bool:
    return isinstance(value, FunctionType) and (word.startswith(_PREFIX) or _marks(value) is not None)


def _marks(function: object) -> dict[str, Any] | None:
    """What @hookimpl left on a function."""
    marks: dict[str, Any] | None = getattr(function, f"{hookspecs.PROJECT}_impl", None)
    return marks
