"""Reads what the project's own plugins offer from their sources, for remedies that name a distribution to install.

The build of core's wheel writes it into the wheel (`hatch_build.py`); in a checkout the server asks this file itself.  Nothing
of a plugin is imported: `plugin.py` is run with stand-ins for the names of `lmcache_core`, and a settings model is parsed.

    python core/catalogue.py        # prints it
"""

from __future__ import annotations

import ast
import builtins
import json
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_GROUP = "lmcache.plugins.v1"
_OFFER_KIND = Path(__file__).parent / "src/lmcache_core/app/plugins/offer_kind.py"
_OFFER = ("name", "summary", "open", "settings")
_SETTING_GROUP = ("title", "model", "apply")


def read_catalogue(root: Path = ROOT) -> dict[str, Any]:
    """`plugins`: distribution by name; `offers`: distribution by "kind:name"; `operations`: "kind:name" of the request module
    that answers each; `settings`: name, flag, plugin and distribution of each setting."""
    found: dict[str, Any] = {"plugins": {}, "offers": {}, "operations": {}, "settings": {}}
    for file in sorted([*root.glob("plugins/*/pyproject.toml"), *root.glob("engines/*/pyproject.toml")]):
        project = tomllib.loads(file.read_text()).get("project", {})
        for plugin, module in project.get("entry-points", {}).get(_GROUP, {}).items():
            source = file.parent / "src" / Path(*module.split(".")).with_suffix(".py")
            _add(found, plugin, project["name"], source, file.parent / "src")
    return found


def _add(found: dict[str, Any], plugin: str, distribution: str, source: Path, sources: Path) -> None:
    found["plugins"][plugin] = distribution
    hooks = _run(source)
    kinds = runpy.run_path(str(_OFFER_KIND))["OfferKind"]
    others = [kinds.of_hook(name) for name, value in hooks.items() if getattr(value, "optionalhook", False)]
    for kind in (*kinds, *others):
        for offer in hooks.get(kind.hook, list)():
            found["offers"][f"{kind}:{offer.name}"] = distribution
            found["operations"] |= dict.fromkeys(getattr(offer, "operations", ()), f"{kind}:{offer.name}")
    for group in hooks.get("lmcache_settings", list)():
        module, _, model = group.model.partition(":")
        for name, flag, is_switch in _settings(sources / Path(*module.split(".")).with_suffix(".py"), model):
            found["settings"][name] = {
                "flag": flag,
                "plugin": plugin,
                "distribution": distribution,
                "is_switch": is_switch,
            }


def _run(source: Path) -> dict[str, Any]:
    """The names of a `plugin.py`, with stand-ins for what it imports of core."""
    standins = SimpleNamespace(
        Offer=_standin(_OFFER),
        SettingGroup=_standin(_SETTING_GROUP),
        StorageFacts=_standin(()),
        Capability=_Flags(),
        hookimpl=_hookimpl,
    )

    def load(name: str, *args: Any) -> Any:
        return standins if name.partition(".")[0] == "lmcache_core" else builtins.__import__(name, *args)

    names: dict[str, Any] = {"__name__": "plugin", "__builtins__": {**vars(builtins), "__import__": load}}
    exec(compile(source.read_text(), str(source), "exec"), names)  # noqa: S102 - our own source
    return names


def _hookimpl(hook: Any = None, **marks: bool) -> Any:
    def mark(function: Any) -> Any:
        vars(function).update(marks)
        return function

    return mark if hook is None else hook


def _standin(parts: tuple[str, ...]) -> Any:
    return lambda *given, **more: SimpleNamespace(**dict(zip(parts, given, strict=False)), **more)


class _Flags:
    """Replaces `Capability`, any member of it, and any combination of them."""

    def __getattr__(self, name: str) -> _Flags:
        return self

    def __or__(self, other: object) -> _Flags:
        return self


def _settings(source: Path, model: str) -> list[tuple[str, str, bool]]:
    """Name and flag of each field of a settings model, and whether it is a switch."""
    tree = ast.parse(source.read_text())
    (body,) = [each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == model]
    fields = [each for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return [
        (each.target.id, _flag(each), isinstance(each.annotation, ast.Name) and each.annotation.id == "bool")
        for each in fields
        if isinstance(each.target, ast.Name) and not each.target.id.startswith("_")
    ]


def _flag(field: ast.AnnAssign) -> str:
    for each in ast.walk(field):
        if isinstance(each, ast.keyword) and each.arg == "json_schema_extra":
            extra = ast.literal_eval(each.value)
            if "flag" in extra:
                return str(extra["flag"])
    assert isinstance(field.target, ast.Name)
    return field.target.id.replace("_", "-")


if __name__ == "__main__":
    print(json.dumps(read_catalogue(), indent=1))
