"""Connects plugins through pluggy and asks them what they offer, one at a time.

pluggy stops at the first hook it does not know, passes over a function that is not decorated, and loses everybody's
answers when one plugin raises.  Here each plugin is looked at before it is registered, and each is called alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter, signature
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import pluggy

from lmcache_core.app.plugins.offer_kind import HOOKS, Offered, OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.contracts import hookspecs
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer, SettingGroup, StorageFacts
from lmcache_core.model.errors import PluginContractError
from lmcache_core.model.spelling import nearest

_PREFIX = f"{hookspecs.PROJECT}_"
_SETTINGS = "lmcache_settings"


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
            offers = tuple(
                offered for kind, hook in HOOKS.items() if hook in hooks for offered in self._offers(name, kind, hook)
            )
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

    def _offers(self, name: str, kind: OfferKind, hook: str) -> Iterable[Offered]:
        offers = self._answer(name, hook, Offer)
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


_MAY_BE_DEFAULT: Final = (OfferKind.SUBSCRIBER, OfferKind.REQUEST_MODULE, OfferKind.HTTP_ROUTES, OfferKind.SERVICE)
"""Of every other kind, something is used because the configuration names it."""


def check_offers(plugin: str, kind: OfferKind, offers: Sequence[Any]) -> None:
    """Raise PluginContractError for the first fault of the first offer that has one."""
    seen = set()
    for offer in offers:
        if fault := _fault(kind, offer):
            raise PluginContractError(plugin, fault)
        if offer.name in seen:
            raise PluginContractError(plugin, f"{kind.label} '{offer.name}' is offered twice")
        seen.add(offer.name)


def check_groups(plugin: str, hook: str, groups: Sequence[Any]) -> None:
    """The same for groups of settings."""
    for group in groups:
        if not isinstance(group, SettingGroup):
            raise PluginContractError(plugin, f"{hook} returned {type(group).__name__} where SettingGroup belongs")
        if not _is_line(group.title):
            raise PluginContractError(plugin, f"{hook}: title is {_short(group.title)}, not one line of text")
        for part, text in (("model", group.model), ("apply", group.apply)):
            if not _is_import_string(text):
                fault = f"{part} is {text!r}, not an import string 'package.module:name'"
                raise PluginContractError(plugin, f"settings '{group.title}': {fault}")


def _fault(kind: OfferKind, offer: Any) -> str | None:
    if not isinstance(offer, Offer):
        return f"{kind.hook} returned {type(offer).__name__} where Offer belongs"
    if not _is_offer_name(offer.name):
        return f"{kind.hook} returned an Offer with the name {offer.name!r}; a name is a word such as 'fs'"
    fault = _fault_of_strings(offer) or _fault_of_values(kind, offer)
    return f"{kind.label} '{offer.name}': {fault}" if fault else None


def _fault_of_strings(offer: Any) -> str | None:
    optional = [(part, getattr(offer, part)) for part in ("settings", "check") if getattr(offer, part) is not None]
    for part, text in (("open", offer.open), *optional):
        if not _is_import_string(text):
            return f"{part} is {text!r}, not an import string 'package.module:name'"
    if not _is_line(offer.summary):
        return f"summary is {_short(offer.summary)}, not one line of text"
    return None


def _fault_of_values(kind: OfferKind, offer: Any) -> str | None:
    for part, flags in (("capabilities", offer.capabilities), ("optional_capabilities", offer.optional_capabilities)):
        if not isinstance(flags, Capability):
            return f"{part} is {_short(flags)}, not a Capability such as Capability.NONE"
    if not isinstance(offer.default, bool):
        return f"default is {_short(offer.default)}, not True or False"
    if offer.storage is not None and not isinstance(offer.storage, StorageFacts):
        return f"storage is {_short(offer.storage)}, not StorageFacts"
    if not isinstance(offer.operations, tuple) or not all(isinstance(each, str) for each in offer.operations):
        return f"operations is {_short(offer.operations)}, not a tuple of names"
    if offer.default and kind not in _MAY_BE_DEFAULT:
        return (
            "default is True, which is for subscribers, request modules, HTTP routes and services alone; leave it out"
        )
    return None


def _short(value: object) -> str:
    return repr(value)[:80]


# Without regular expressions, which would cost every listing the time to compile them.


def _is_offer_name(name: object) -> bool:
    """A letter, then letters, digits and any of "_.-"."""
    if not (isinstance(name, str) and name.isascii() and name[:1].isalpha()):
        return False
    return all(each.isalnum() or each in "_.-" for each in name)


def _is_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and not text.isspace() and text != ""


def _is_import_string(text: object) -> bool:
    """`package.module:name`"""
    if not isinstance(text, str):
        return False
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


VARIABLE: Final = "LMCACHE_TRACE_HOOKS"


class HookTrace:
    """One line per call that reaches a plugin: which plugin, which hook, how long.  One thread, that of the hooks."""

    def __init__(self) -> None:
        self._begun: list[float] = []  # a hook may call another one

    def watch(self, manager: pluggy.PluginManager) -> None:
        """Sees every call through this manager from now on, whatever its caller."""
        manager.add_hookcall_monitoring(self._before, self._after)

    def _before(self, hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        self._begun.append(time.perf_counter())

    def _after(
        self, outcome: pluggy.Result[Any], hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        milliseconds = (time.perf_counter() - self._begun.pop()) * 1000
        end = f" raised={type(outcome.exception).__name__}" if outcome.exception else ""
        for implementation in implementations:
            plugin = implementation.plugin_name
            # in one piece, because other threads write there, too
            sys.stderr.write(f"lmcache: hook call plugin={plugin} hook={hook} ms={milliseconds:.3f}{end}\n")
