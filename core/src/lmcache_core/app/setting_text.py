"""A setting in words: its type, its limits and its default, read off the field of a settings model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

_WORDS: Final = {
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    bool: "switch",
    SecretStr: "secret text",
    SecretBytes: "secret text",
}
_PLURALS: Final = ((str, "names"), (Path, "paths"), (int, "numbers"))


def limits(field: FieldInfo) -> tuple[str, ...]:
    """What bounds a number: (">= 1", "<= 65535")."""
    return tuple(f"{sign} {bound:g}" for sign, bound in bounds(field))


def bounds(field: FieldInfo) -> Iterator[tuple[str, float]]:
    """Sign and number of each limit, those of an optional, annotated type among them."""
    yield from _bounds(field.metadata)
    for each in get_args(field.annotation):
        for part in getattr(each, "__metadata__", ()):
            yield from _bounds(part.metadata if isinstance(part, FieldInfo) else [part])


def default_text(field: FieldInfo) -> str:
    """The default for people; empty where there is none to speak of.  A secret's is not shown."""
    if field.default_factory is not None:
        return "computed"
    default = field.get_default()
    if default is None or default in ((), "", {}):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, Enum):
        return str(default.value)
    return f"{default:g}" if isinstance(default, float) else str(default)


def type_name(kind: Any) -> str:
    """A type as an operator would call it."""
    if isinstance(kind, type) and kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{each.value}`" for each in kind)
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) or get_origin(kind) is dict:
        return "object"
    options = [each for each in get_args(kind) if each is not type(None)]
    if options and all(isinstance(each, str) for each in options):
        return " or ".join(f"`{each}`" for each in options)
    if hasattr(kind, "__metadata__"):
        return type_name(options[0])
    if options and get_origin(kind) in (tuple, list, set, frozenset):
        return "list of " + next((words for each, words in _PLURALS if options[0] is each), "objects")
    return " or ".join(dict.fromkeys(type_name(each) for each in options)) or getattr(kind, "__name__", str(kind))


def _bounds(metadata: Iterable[Any]) -> Iterator[tuple[str, float]]:
    parts = list(metadata)
    for sign, attribute in ((">", "gt"), (">=", "ge"), ("<", "lt"), ("<=", "le")):
        for part in parts:
            if (bound := getattr(part, attribute, None)) is not None:
                yield sign, bound
