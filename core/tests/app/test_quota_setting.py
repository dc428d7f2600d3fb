"""Quotas as flags, variable and file give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.setting_groups import quota_bytes

GIB = 2**30


def limits(given: Any) -> dict[str, int]:
    return quota_bytes(read_settings({"quota": given}).quota)


def test_flags_add_up() -> None:
    assert limits(['{"a": 2.5}', '{"_default": 0, "b c": 1}']) == {"a": 5 * GIB // 2, "": 0, "b c": GIB}
    assert limits([]) == {}


def test_the_variable_holds_one_object_or_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_QUOTA", '{"a": 1, "b": 2}')
    assert quota_bytes(read_settings({}).quota) == {"a": GIB, "b": 2 * GIB}
    monkeypatch.setenv("LMCACHE_QUOTA", '[{"a": 1}, {"b": 0.5}]')
    assert quota_bytes(read_settings({}).quota) == {"a": GIB, "b": GIB // 2}


def test_the_file_holds_an_object(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.toml"
    path.write_text('default_quota_gb = 0\n[quota]\ntenant-a = 2.5\n"_default" = 1\n')
    settings = read_settings({"config": str(path)})
    assert quota_bytes(settings.quota) == {"tenant-a": 5 * GIB // 2, "": GIB}
    assert settings.default_quota_gb == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["{"], "--quota is \"['{']\": not JSON: "),
        (["[1]"], '[0] is not a JSON object; expected one such as {"tenant-a": 2.5}'),
        (['{"a": -1}'], "salt 'a': '-1' is not a number of GiB from 0 to 1073741824"),
        (['{"a": "1"}'], "salt 'a': '1' is not a number of GiB"),
        (['{"a": true}'], "salt 'a': 'True' is not a number of GiB"),
        (['{"a": NaN}'], "salt 'a': 'nan' is not a number of GiB"),
        (['{"a": 1e99}'], "salt 'a': '1e+99' is not a number of GiB"),
        (['{"a": 1}', '{"a": 2}'], "salt 'a' is given twice"),
        (['{"a": 1, "a": 2}'], "key 'a' is given twice"),
        (['{"": 1}'], "salt '': the empty salt is written _default"),
        (['{"a@b": 1}'], "salt 'a@b': a cache salt holds none of @ / \\ and NUL, this one '@'"),
    ],
)
def test_mistakes_name_the_salt(given: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        limits(given)
    assert str(raised.value).startswith("--quota is ")
    assert says in str(raised.value)


@pytest.mark.parametrize("given", ["-0.5", "nan", "inf", "much"])
def test_a_default_quota_is_a_size(given: str) -> None:
    with pytest.raises(ConfigError, match="--default-quota-gb is"):
        read_settings({"default_quota_gb": given})
