"""Model names in their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ModelName, parse_model_name
from lmcache_core.model.names import names_model, registered_name

ENGINE, ADAPTER = "9f86d081884c7d65", "60303ae22b998861"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (f"org/m##{ENGINE}", ModelName("org/m", ENGINE)),
        (f"org/m##{ENGINE}%%{ADAPTER}", ModelName("org/m", ENGINE, ADAPTER)),
        (f"m%%{ADAPTER}", ModelName("m", "", ADAPTER)),
        (f"##{ENGINE}", ModelName("", ENGINE)),
        (f"a##b##{ENGINE}", ModelName("a##b", ENGINE)),
        (f"m##{ENGINE}##blend", ModelName("m", ENGINE)),
        (f"m##{ENGINE}##blend%%{ADAPTER}", ModelName("m", ENGINE, ADAPTER)),
        ("m##blend", ModelName("m")),
        ("m##blend##blend", ModelName("m##blend")),
        ("m", ModelName("m")),
        ("", ModelName("")),
        (f"m##{ENGINE.upper()}", ModelName(f"m##{ENGINE.upper()}")),
        (f"m##{ENGINE}0", ModelName(f"m##{ENGINE}0")),
        (f"m##{ENGINE}\n", ModelName(f"m##{ENGINE}\n")),
    ],
)
def test_parts(name: str, parts: ModelName) -> None:
    assert parse_model_name(name) == parts


@given(st.text())
def test_any_text_is_a_name(name: str) -> None:
    parts = parse_model_name(name)
    identity, variant = (
        mark + digits if digits else "" for mark, digits in (("##", parts.identity), ("%%", parts.variant))
    )
    assert parts.served + identity + variant == name
    assert registered_name(name) == parts.served + identity


def test_workers_register_without_what_requests_add() -> None:
    for added in ("", "##blend", f"%%{ADAPTER}", f"##blend%%{ADAPTER}"):
        assert registered_name(f"m##{ENGINE}{added}") == f"m##{ENGINE}"
        assert registered_name(f"m{added}") == "m"


def test_which_model_a_name_means() -> None:
    assert names_model("m", f"m##{ENGINE}##blend")
    name = f"m##{ENGINE}%%{ADAPTER}"
    assert all(names_model(asked, name) for asked in (name, f"m##{ENGINE}", "m"))
    assert not any(names_model(asked, name) for asked in (f"m##{ADAPTER}", f"m##{ADAPTER}%%{ADAPTER}", "n", "", "m##"))
    assert not names_model(name, "m")
    assert not names_model(f"m##{ENGINE}", "m")
