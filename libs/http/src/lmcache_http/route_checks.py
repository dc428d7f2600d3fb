"""What is wrong with the routes that plugins declare: against the contract, paths that are taken, and each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from lmcache_core import HttpRoute, PluginRoute, RouteCheck

_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_PATH: Final = re.compile(r"(/([A-Za-z0-9._~-]+|{[a-z_][a-z0-9_]*}))+")
_LINE_CHARACTERS: Final = 200


def route_check(reserved: Mapping[str, Sequence[str]]) -> RouteCheck:
    """`reserved`: paths that no plugin may have, by the name of their owner, who has every method of them."""

    def check(plugin: PluginRoute, others: Sequence[PluginRoute]) -> str | None:
        route = plugin.route
        if fault := fault_of_route(route):
            return fault
        rivals = [owner for owner, paths in reserved.items() if any(paths_overlap(route.path, path) for path in paths)]
        rivals += [
            f"HTTP routes '{other.offer}' ({other.owner})"
            for other in others
            if other.route.method == route.method and paths_overlap(route.path, other.route.path)
        ]
        if rivals:
            return f"{route.method} {route.path} is answered by {rivals[0]}, too; choose another path"
        return None

    return check


def fault_of_route(route: Any) -> str | None:
    """What is wrong with a declaration, in words; None for a right one."""
    if not isinstance(route, HttpRoute):
        return f"it has {type(route).__name__} where HttpRoute belongs"
    where = f"route {route.method!r} {route.path!r}"
    fault = _fault_of_address(route) or _fault_of_values(route)
    return f"{where}: {fault}" if fault else None


def _fault_of_address(route: Any) -> str | None:
    if route.method not in _METHODS:
        return f"the method is none of {', '.join(_METHODS)}"
    if not (isinstance(route.path, str) and _PATH.fullmatch(route.path)):
        return "a path is such as /acme/things/{name}: absolute, without a slash at its end"
    names = re.findall(r"{(\w+)}", route.path)
    if len(set(names)) < len(names):
        return "two parts of the path have one name"
    return None


def _fault_of_values(route: Any) -> str | None:
    if not callable(route.answer):
        return "answer is not a function"
    if not _is_line(route.summary):
        return f"summary is not a line of text of at most {_LINE_CHARACTERS} characters"
    if not isinstance(route.query, Mapping) or not all(_is_line(text) for each in route.query.items() for text in each):
        return "query is not a mapping of names to lines of text"
    for part, model in (("body", route.body), ("answers", route.answers)):
        if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
            return f"{part} is {model!r}, which is not a pydantic model"
    if route.body is not None and route.method in ("GET", "DELETE"):
        return f"a {route.method} has no body"
    if not isinstance(route.refusals, Mapping) or not all(
        isinstance(status, int) and 400 <= status <= 599 and _is_line(when) for status, when in route.refusals.items()
    ):
        return "refusals is not a mapping of statuses from 400 to 599 to lines of text"
    if not _is_line(route.media_type) or "/" not in route.media_type:
        return f"media_type is {route.media_type!r}, not one such as text/plain"
    if route.open and route.method != "GET":
        return "only a GET may be open: whatever changes something needs a token"
    return None


def _is_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and 0 < len(text.strip()) <= _LINE_CHARACTERS


def paths_overlap(path: str, other: str) -> bool:
    """True where one request matches both paths."""
    parts, others = path.split("/"), other.split("/")
    return len(parts) == len(others) and all(
        one == two or one.startswith("{") or two.startswith("{") for one, two in zip(parts, others, strict=True)
    )
