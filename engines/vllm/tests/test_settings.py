from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lmcache_vllm.settings import DEFAULT_URL, Settings

README = Path(__file__).parents[1] / "README.md"


def test_nothing_given() -> None:
    assert Settings.of({}) == Settings()
    assert Settings().url == DEFAULT_URL


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"lmcache.url": "tcp://10.0.0.1:7"}, "tcp://10.0.0.1:7"),
        ({"lmcache.url": "cache:7"}, "tcp://cache:7"),
        ({"lmcache.host": "cache"}, "tcp://cache:5555"),
        ({"lmcache.port": 7}, "tcp://127.0.0.1:7"),
        ({"lmcache.host": "ipc://x", "lmcache.port": "7"}, "ipc://x:7"),
        ({"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 7}, "tcp://localhost:7"),
    ],
)
def test_where_the_server_is(given: dict[str, Any], url: str) -> None:
    assert Settings.of(given).url == url


def test_what_is_not_ours_is_left_alone() -> None:
    assert Settings.of({"other": 1, "lmcache.save_decode": True}) == Settings(save_decode=True)


def test_blending() -> None:
    found = Settings.of(
        {
            "lmcache.blend": "requests",
            "lmcache.blend_recompute_ratios": [0.3, 0.15],
            "lmcache.blend_check_layers": [1, 2],
            "lmcache.blend_thresholds": [4],
        }
    )
    assert (found.blend, found.blend_recompute_ratios, found.blend_check_layers) == ("requests", (0.3, 0.15), (1, 2))
    assert found.blend_thresholds == (4.0,)
    assert Settings.of({"lmcache.blend_recompute_ratios": 1}).blend_recompute_ratios == (1.0,)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lmcache.lookup_timeout": 5}, "did you mean 'lmcache.lookup_timeout_ms'"),
        ({"lmcache.mp.mq_timeout": 5}, "'lmcache.mp.mq_timeout' in kv_connector_extra_config is not known"),
        ({f"lmcache.{'x' * 40}": 5}, "is not known. Known are lmcache."),
        ({"lmcache.url": "a:1", "lmcache.port": 5}, "give one of them"),
        ({"lmcache.host": "a", "lmcache.mp.host": "b"}, "given twice"),
        ({"lmcache.port": 0}, "1 to 65535"),
        ({"lmcache.port": True}, "1 to 65535"),
        ({"lmcache.timeout_seconds": 0}, "above 0"),
        ({"lmcache.save_decode": "yes"}, "true or false"),
        ({"lmcache.eager_lookups": -1}, "from 0"),
        ({"lmcache.url": ""}, "a text"),
        ({"lmcache.engine_url": "http://10.0.0.1:8100"}, "without 'lmcache.pd_role'"),
        ({"lmcache.engine_url": "10.0.0.1:8100", "lmcache.pd_role": "both"}, "an address like"),
        ({"lmcache.engine_url": "http://u@h:1/v1", "lmcache.pd_role": "both"}, "an address like"),
        ({"lmcache.engine_url": "http://h:99999", "lmcache.pd_role": "both"}, "an address like"),
        ({"lmcache.blend": "on"}, "one of off, requests, all"),
        ({"lmcache.blend": True}, "one of off, requests, all"),
        ({"lmcache.blend": ["all"]}, "one of off, requests, all"),
        ({"lmcache.blend_selector": ""}, "a text"),
        ({"lmcache.blend_recompute_ratios": [1.5]}, "shares from 0 to 1"),
        ({"lmcache.blend_recompute_ratios": []}, "shares from 0 to 1"),
        ({"lmcache.blend_recompute_ratios": "0.15"}, "a list of at most 16 numbers from 0, like [0.15]"),
        (
            {"lmcache.blend_recompute_ratios": [0.2, 0.1]},
            "'lmcache.blend_recompute_ratios' has 2 values; it has one for all check layers, or one for each of the 1",
        ),
        ({"lmcache.blend_check_layers": []}, "ascending numbers of layers"),
        ({"lmcache.blend_check_layers": [2, 1]}, "ascending numbers of layers"),
        ({"lmcache.blend_check_layers": [1, 1]}, "ascending numbers of layers"),
        ({"lmcache.blend_check_layers": [0.5]}, "ascending numbers of layers"),
        ({"lmcache.blend_check_layers": 1}, "a list of at most 16 numbers from 0, like [1]"),
        ({"lmcache.blend_thresholds": [-1]}, "a list of at most 16 numbers from 0, like [0.5]"),
        ({"lmcache.blend_thresholds": [0.1, 0.2], "lmcache.blend_check_layers": [1, 2, 3]}, "has 2 values"),
        ({"lmcache.blend_min_tokens": 0.5}, "from 0"),
        ({"lmcache.blend_step_tokens": 0}, "from 1"),
        ({"lmcache.blend": "all", "lmcache.blend_special_str": ""}, 'a text like " # # ", or a list of token ids'),
        ({"lmcache.blend": "all", "lmcache.blend_special_str": []}, "or a list of token ids"),
        ({"lmcache.blend": "all", "lmcache.blend_special_str": [1, -1]}, "or a list of token ids"),
        ({"lmcache.blend": "all", "lmcache.blend_special_str": [True]}, "or a list of token ids"),
        ({"lmcache.blend": "all", "lmcache.blend_special_str": "#" * 65}, "of at most 64 characters or ids"),
        ({"lmcache.blend_special_str": " # # "}, "has no effect without 'lmcache.blend'"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="lmcache") as raised:
        Settings.of(given)
    assert says in str(raised.value)


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_the_readme_lists_every_setting_with_its_default(field: Any) -> None:
    shown = f"`{field.default}`" if isinstance(field.default, str) else json.dumps(field.default).removesuffix(".0")
    shown = "none" if field.default == "" else shown
    assert f"| `lmcache.{field.name}` | {shown} | " in README.read_text()
