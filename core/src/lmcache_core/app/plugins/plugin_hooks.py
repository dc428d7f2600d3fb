"""Connects plugins through pluggy and asks them what they offer, one at a time.

pluggy stops at the first hook it does not know, passes over a function that is not decorated, and loses all
answers when one plugin raises.  Here each plugin is looked at before it is registered, and each is called alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

import pluggy

from lmcache_core.app.plugins.offer_kind import Offered, OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.contracts import hookspecs
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer, SettingGroup, StorageFacts
from lmcache_core.model.errors import PluginContractError
from lmcache_core.model.spelling import nearest

_PREFIX = f"{hookspecs.PROJECT}_"
_SETTINGS = "lmcache_settings"


class PluginHooks:
    """The connected plugins.  Used while the server starts and stops, by the thread that does that."""

    def __init__(self, *, trace: bool = False) -> None:
        """`trace`: write a line for each call that reaches a plugin, whatever its caller."""
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        if trace:
            _trace(self._manager)

    def connect(self, name: str, module: ModuleType) -> tuple[tuple[Offered, ...], tuple[SettingGroup, ...]]:
        """Register a plugin and collect its offers and its settings.  Raises PluginContractError for one that breaks the
        contract, which is not registered then."""
        _check_names(name, module)
        if other := self._manager.get_name(module):
            raise PluginContractError(name, f"module {module.__name__} is that of plugin '{other}', too")
        try:
            self._manager.register(module, name)
            hooks = self.hooks_of(name)
            others = [each for each in hooks if each.startswith(_PREFIX) and each not in _KNOWN_HOOKS]
            kinds = (*OfferKind, *map(OfferKind.of_hook, others))
            offers = tuple(
                Offered(kind, offer) for kind in kinds if kind.hook in hooks for offer in self._offers(name, kind)
            )
            return offers, self._groups(name) if _SETTINGS in hooks else ()
        except (pluggy.PluginValidationError, PluginContractError) as error:
            if self._manager.has_plugin(name):  # older versions of pluggy leave an invalid one half registered
                self._manager.unregister(name=name)
            if isinstance(error, PluginContractError):
                raise
            raise PluginContractError(name, " ".join(str(error).split())) from error

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

    def _offers(self, name: str, kind: OfferKind) -> list[Offer]:
        seen: set[str] = set()
        offers = self._answer(name, kind.hook, Offer)
        for offer in offers:
            if fault := _fault_of_offer(kind, offer):
                raise PluginContractError(name, fault)
            if offer.name in seen:
                raise PluginContractError(name, f"{kind.label} '{offer.name}' is offered twice")
            seen.add(offer.name)
        return offers

    def _groups(self, name: str) -> tuple[SettingGroup, ...]:
        groups = self._answer(name, _SETTINGS, SettingGroup)
        for group in groups:
            if not isinstance(group, SettingGroup):
                raise PluginContractError(
                    name, f"{_SETTINGS} returned {type(group).__name__} where SettingGroup belongs"
                )
            if fault := _fault_of(group, _GROUP_PARTS):
                subject = f"settings '{group.title}'" if _is_line(group.title) else _SETTINGS
                raise PluginContractError(name, f"{subject}: {fault}")
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


_KNOWN_HOOKS: Final = [word for word, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]


def _check_names(name: str, module: ModuleType) -> None:
    """Raise PluginContractError for what pluggy would pass over in silence, or find too late."""
    known = _KNOWN_HOOKS
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


def _is_meant_as_hook(word: str, value: object) -> bool:
    return isinstance(value, FunctionType) and (word.startswith(_PREFIX) or _marks(value) is not None)


def _marks(function: object) -> dict[str, Any] | None:
    """What @hookimpl left on a function."""
    marks: dict[str, Any] | None = getattr(function, f"{hookspecs.PROJECT}_impl", None)
    return marks


_MAY_BE_DEFAULT: Final = (OfferKind.SUBSCRIBER, OfferKind.REQUEST_MODULE, OfferKind.HTTP_ROUTES, OfferKind.SERVICE)
"""Of every other kind, something is used because the configuration names it."""


def _fault_of_offer(kind: OfferKind, offer: Any) -> str | None:
    if not isinstance(offer, Offer):
        return f"{kind.hook} returned {type(offer).__name__} where Offer belongs"
    if not _is_offer_name(offer.name):
        return f"{kind.hook} returned an Offer with the name {offer.name!r}; a name is a word such as 'fs'"
    fault = _fault_of(offer, _OFFER_PARTS)
    if fault is None and offer.default and kind not in _MAY_BE_DEFAULT:
        fault = (
            "default is True, which is for subscribers, request modules, HTTP routes and services alone; leave it out"
        )
    return f"{kind.label} '{offer.name}': {fault}" if fault else None


def _fault_of(given: object, parts: Iterable[tuple[str, Callable[[object], bool], str]]) -> str | None:
    for part, is_right, wanted in parts:
        value = getattr(given, part)
        if not is_right(value):
            return f"{part} is {repr(value)[:80]}, not {wanted}"
    return None


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


def _is_import_string_or_none(text: object) -> bool:
    return text is None or _is_import_string(text)


def _is_capability(value: object) -> bool:
    return isinstance(value, Capability)


_IMPORT_STRING: Final = "an import string 'package.module:name'"
_OFFER_PARTS: Final = (
    ("open", _is_import_string, _IMPORT_STRING),
    ("settings", _is_import_string_or_none, _IMPORT_STRING),
    ("check", _is_import_string_or_none, _IMPORT_STRING),
    ("summary", _is_line, "one line of text"),
    ("capabilities", _is_capability, "a Capability such as Capability.NONE"),
    ("optional_capabilities", _is_capability, "a Capability such as Capability.NONE"),
    ("default", lambda value: isinstance(value, bool), "True or False"),
    ("storage", lambda value: value is None or isinstance(value, StorageFacts), "StorageFacts"),
    (
        "operations",
        lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
        "a tuple of names",
    ),
)
_GROUP_PARTS: Final = (
    ("title", _is_line, "one line of text"),
    ("model", _is_import_string, _IMPORT_STRING),
    ("apply", _is_import_string, _IMPORT_STRING),
)


def _trace(manager: pluggy.PluginManager) -> None:
    """One line on standard error for each plugin that a call reaches: which plugin, which hook, how long."""
    started: list[float] = []  # a hook may call another one

    def after(outcome: pluggy.Result[Any], hook: str, implementations: Sequence[Any], _: object) -> None:
        milliseconds = (time.perf_counter() - started.pop()) * 1000
        end = f" raised={type(outcome.exception).__name__}" if outcome.exception else ""
        for each in implementations:
            # in one piece, because other threads write there, too
            sys.stderr.write(f"lmcache: hook call plugin={each.plugin_name} hook={hook} ms={milliseconds:.3f}{end}\n")

    manager.add_hookcall_monitoring(lambda *_: started.append(time.perf_counter()), after)
