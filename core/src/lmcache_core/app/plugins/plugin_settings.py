"""Groups of settings that plugins bring: their models imported, and their names checked for clashes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lmcache_client.errors import LMCacheError
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.plugin_modules import describe
from lmcache_core.contracts.offer import SettingGroup
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.errors import PluginContractError, PluginLoadError

Applied = Mapping[str, Mapping[str, Any] | None]
"""Settings of offers by "kind:name"; None switches one off."""


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A heading of `--help` and the model of the settings below it: a plugin's, or core's own."""

    title: str
    model: type[BaseModel]
    plugin: Candidate | None = None
    apply: str = ""
    """Import string of the plugin's function."""

    def applied(self, values: BaseModel, given: frozenset[str]) -> Applied:
        """What the plugin makes of its settings.  Its ConfigError passes; raises PluginLoadError for any other error, and
        PluginContractError for an answer of another form."""
        assert self.plugin is not None
        subject = f"settings of plugin '{self.plugin.name}' ({self.plugin.owner}): {self.apply}"
        try:
            apply: Callable[[Any, frozenset[str]], Any] = _imported(self.apply)
            answer = apply(values, given)
        except LMCacheError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginLoadError(self.plugin.name, f"{subject} failed: {describe(error)}") from error
        if not isinstance(answer, Mapping) or not all(
            isinstance(key, str) and (each is None or isinstance(each, Mapping)) for key, each in answer.items()
        ):
            raise PluginContractError(
                self.plugin.name, f"{subject} returned {answer!r:.80}; it must return settings by 'kind:name', or None"
            )
        return answer


class MissingSetting(NamedTuple):
    """Why a setting that was given has no effect."""

    text: str
    left_out: bool
    """Its plugin is installed, and --plugin, --no-plugin or --safe-mode leaves it out."""


def flag_of(name: str, field: FieldInfo) -> str:
    """The flag of a setting, with its dashes."""
    extra = field.json_schema_extra
    word = extra.get("flag") if isinstance(extra, dict) else None
    return f"--{word}" if isinstance(word, str) else "--" + name.replace("_", "-")


def load_group(candidate: Candidate, group: SettingGroup) -> LoadedGroup:
    """Imports the group's model.  Raises PluginError."""
    subject = f"settings '{group.title}' ({candidate.owner})"
    try:
        model = _imported(group.model)
    except (Exception, SystemExit) as error:
        raise PluginLoadError(candidate.name, f"{subject}: {group.model}: {describe(error)}") from error
    if not (isinstance(model, type) and issubclass(model, PluginSettings)):
        raise PluginContractError(candidate.name, f"{subject}: '{group.model}' is not a PluginSettings model")
    for name, field in model.model_fields.items():
        if field.is_required() or not field.description:
            lacks = "default" if field.is_required() else "description"
            raise PluginContractError(candidate.name, f"{subject}: setting '{name}' has no {lacks}")
    return LoadedGroup(group.title, model, candidate, group.apply)


def clashes(groups: Sequence[LoadedGroup], own: Mapping[str, FieldInfo]) -> dict[int, str]:
    """By the index of a group, a sentence about the first of its settings that core or another plugin has, too; by name or
    by flag.  `own`: core's."""
    owners: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for word in {*group.model.model_fields, *(flag_of(*each) for each in group.model.model_fields.items())}:
            owners[word].append(index)
    of_core = {*own, *(flag_of(*each) for each in own.items()), "help", "--help"}
    found: dict[int, str] = {}
    for word, indices in sorted(owners.items(), reverse=True):  # names before flags
        plugins = [plugin for index in indices if (plugin := groups[index].plugin)]
        said = " and ".join(f"plugin '{each.name}' ({each.owner})" for each in plugins)
        remedy = " or ".join(f"--no-plugin {each.name}" for each in plugins)
        for index in indices:
            if word in of_core:
                found.setdefault(
                    index, f"setting '{word}' of {said} is one of core's: leave the plugin out with {remedy}"
                )
            elif len(indices) > 1:
                found.setdefault(
                    index,
                    f"setting '{word}' is one of {said}; none of them is used: leave all but one out with {remedy}",
                )
    return found


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
