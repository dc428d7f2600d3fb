"""Settings that are JSON objects: text on the command line and in the environment, objects already in a file."""

from __future__ import annotations

import json
from typing import Any


def name_or_object(value: Any) -> Any:
    """What names a policy.  Raises ValueError."""
    given = from_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    name = given.get("type") if isinstance(given, dict) else given
    if not isinstance(name, str) or not name:
        raise ValueError('expected a name, or a JSON object such as {"type": "LRU"}')
    return given


def json_objects(value: Any, example: str) -> tuple[dict[str, Any], ...]:
    """One object or several, as JSON or as a file has them."""
    given = from_json(value) if isinstance(value, str) else value
    items = [given] if isinstance(given, dict) else given
    if not isinstance(items, list | tuple):
        raise ValueError(f"expected a JSON object such as {example}")
    objects = [from_json(item) if isinstance(item, str) else item for item in items]
    for index, item in enumerate(objects):
        if not isinstance(item, dict):
            raise ValueError(f"[{index}] is no JSON object; expected one such as {example}")
    return tuple(objects)


def from_json(text: str) -> Any:
    """Raises ValueError that says where it is no JSON, or which key is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return values
