"""Settings models of plugins, and errors that tell the user what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from lmcache_client.errors import ConfigError
from lmcache_core.model.spelling import nearest

Model = TypeVar("Model", bound=BaseModel)


class PluginSettings(BaseModel):
    """Base of every plugin's settings: unknown keys are errors, values are fixed after validation.

    Give each field a default or none, a check, a unit as the last word of its name, and a description: the reference is
    generated from it.  A secret is a `SecretStr`, or a field with `json_schema_extra={"secret": True}`: it is
    never shown by the server, whatever it says of its configuration."""

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
    given = fault.get("input")
    shown = "" if field is None or _tells_secret(field) or _may_hold_secret(given) else f" is {repr(given)[:80]}"
    subject = f"field '{path}'{shown}: " if path else ""
    if fault["type"] == "path_type":  # pydantic's own words name a class of Python
        return f"field '{path}'{shown}: it is not a path"
    return f"{subject}{message[:1].lower()}{message[1:]}"


def _may_hold_secret(given: Any) -> bool:
    """Objects have names of their own inside, and texts can be URLs with a user or `name=value` pairs."""
    if isinstance(given, list | tuple):
        return any(_may_hold_secret(each) for each in given)
    return isinstance(given, Mapping) or (isinstance(given, str) and ("@" in given or "=" in given))


def is_secret(field: FieldInfo) -> bool:
    """Is the value of this field one, or several?"""
    extra = field.json_schema_extra
    return (isinstance(extra, dict) and extra.get("secret") is True) or _has_secret_type(field.annotation)


def _has_secret_type(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, SecretStr | SecretBytes):
        return True
    return any(_has_secret_type(part) for part in get_args(kind))


def _tells_secret(field: FieldInfo) -> bool:
    """Is it a secret, or something that has one inside?"""
    kinds = (field.annotation, *get_args(field.annotation))
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return is_secret(field) or any(_tells_secret(inner) for model in models for inner in model.model_fields.values())
