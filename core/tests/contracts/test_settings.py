"""Errors of settings: one line that names the field, and never what is secret."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr, field_validator

from lmcache_client.errors import ConfigError
from lmcache_core.contracts.settings import PluginSettings, validate

SECRET = "hunter2"


class Login(BaseModel):
    user: str
    password: SecretStr


class Settings(PluginSettings):
    endpoint: str = Field("localhost", min_length=3)
    token: SecretStr | None = None
    key: SecretBytes = SecretBytes(b"")
    tokens: list[SecretStr] = Field(default_factory=list)
    login: Login | None = None
    pages: int = 1
    pin: SecretStr = SecretStr("0000")

    @field_validator("pin")
    @classmethod
    def _digits(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().isdigit():
            raise ValueError("must be digits")
        return value


@pytest.mark.parametrize(
    "values",
    [
        {"token": [SECRET]},
        {"key": {"a": SECRET}},
        {"tokens": [SECRET, [SECRET]]},
        {"tokens": {SECRET: 1}},
        {"login": {"user": 1, "password": [SECRET]}},
        {"login": SECRET},
        {"pin": SECRET},
    ],
)
def test_a_secret_is_never_in_the_message(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Settings, values, "--l2-adapter[0]")
    assert SECRET not in str(caught.value)
    assert next(iter(values)) in str(caught.value)


@pytest.mark.parametrize("given", [{"api_key": SECRET}, [{"x": SECRET}], f"api_key={SECRET}", f"https://u:{SECRET}@h"])
def test_values_with_something_inside_are_not_quoted(given: object) -> None:
    with pytest.raises(ConfigError, match=r"field 'pages': ") as caught:
        validate(Settings, {"pages": given}, "here")
    assert SECRET not in str(caught.value)


def test_what_is_not_a_secret_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"^--l2-adapter\[0\]: field 'endpoint' is 'x': .*at least 3"):
        validate(Settings, {"endpoint": "x"}, "--l2-adapter[0]")


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no field is called 'tokn'; did you mean 'token'"):
        validate(Settings, {"tokn": SECRET}, "here")
