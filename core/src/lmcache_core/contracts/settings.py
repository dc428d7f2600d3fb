"""Settings models of plugins, and errors that tell the user what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError

from lmcache_core.model.errors import ConfigError
from lmcache_core.model.spelling import nearest

Model = TypeVar("Model", bound=BaseModel)


class PluginSettings(BaseModel):
    """Base of every plugin's settings: unknown keys are errors, values are fixed after validation.

    Give each field a default or none, a check, a unit as the last word of its name, and a description: the reference is
    generated from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def validate(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """`values` as `model`.  Raises ConfigError with one line that names `where`, the key, and what is allowed."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, model)}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, in one line, the first three faults of it."""
    faults = [_fault(fault, model) for fault in error.errors(include_url=False)[:3]]
    more = error.error_count() - len(faults)
    return "; ".join(faults) + (f"; and {more} more" if more > 0 else "")


def _fault(fault: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in fault["loc"])
    known = list(model.model_fields)
    if fault["type"] == "extra_forbidden":
        guess = nearest(path, known)
        remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"
        return f"no field is called '{path}'; {remedy}"
    if fault["type"] == "missing":
        return f"field '{path}' is required"
    message = str(fault["msg"]).removeprefix("Value error, ")
    field = model.model_fields.get(str(fault["loc"][0])) if fault["loc"] else None
    shown = "" if field is None or _holds_secret(field.annotation) else f" is {repr(fault.get('input'))[:80]}"
    subject = f"field '{path}'{shown}: " if path else ""
    if fault["type"] == "path_type":  # pydantic's own words name a class of Python
        return f"field '{path}'{shown}: it is not a path"
    return f"{subject}{message[:1].lower()}{message[1:]}"


def _holds_secret(kind: Any) -> bool:
    """Is this the type of a secret, or of something that has one inside?"""
    if isinstance(kind, type) and issubclass(kind, SecretStr | SecretBytes):
        return True
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(_holds_secret(field.annotation) for field in kind.model_fields.values())
    return any(_holds_secret(part) for part in get_args(kind))
