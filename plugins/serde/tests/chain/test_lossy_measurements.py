"""`lmcache bench l2` and `lmcache doctor` with serdes that change numbers: they are given numbers, and nothing that comes back
is called the same byte for byte."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.cli import main
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit.borrowed_memory import object_key
from lmcache_tools.doctor.adapter_trial import TrialFailedError, try_adapter
from lmcache_tools.doctor.adapters import adapter_trials
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level
from lmcache_tools.number_layouts import NumberLayouts, as_numbers
from plugins.serde.tests.chain import serde_plugin

SMALL = ("--sizes", "64KiB,100KiB", "--depths", "2", "--bytes", "512KiB", "--rounds", "2", "--timeout-seconds", "20")
OBJECT_BYTES = 64 * 1024
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def plugins() -> LoadedPlugins:
    return load_plugins(["serde", serde_plugin.__name__])


def bench(serde: Any, *arguments: str) -> int:
    adapter = json.dumps({"type": "memory", "max_size_gb": 0.1, "serde": serde})
    given = [
        "bench",
        "l2",
        "--plugin",
        "serde",
        "--plugin",
        serde_plugin.__name__,
        "--l2-adapter",
        adapter,
        *SMALL,
        *arguments,
    ]
    return main(given)


def trial(plugins: LoadedPlugins, serde: Any) -> Any:
    (spec,) = adapter_specs([{"type": "memory", "serde": serde}], plugins)
    return try_adapter(spec, plugins, OBJECT_BYTES, 10.0)


class TestBench:
    def test_what_comes_back_through_a_lossy_chain_is_not_called_the_same(self, capsys: Captured) -> None:
        assert bench(["half", "deflate"], "--medium", "none") == 0
        page = capsys.readouterr().out
        assert "memory (half): 39 loaded objects are whole and under their own keys" in page  # 3 rounds of 8 and 5
        assert "byte for byte" not in page

    def test_its_medium_is_compared_byte_for_byte(self, capsys: Captured) -> None:
        assert bench("half", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["objects_through_lossy_serdes"] == {"memory (half)": 39}
        assert answer["objects_verified"] == 39

    def test_a_lossless_chain_is_compared_byte_for_byte(self, capsys: Captured) -> None:
        assert bench("deflate", "--medium", "none") == 0
        assert "39 loaded objects are what was stored, byte for byte" in capsys.readouterr().out

    def test_a_payload_that_changed_is_seen_although_its_new_header_fits(self, capsys: Captured) -> None:
        assert bench("forgetful", "--medium", "none") == 1
        assert "a whole object with another payload than was stored" in capsys.readouterr().out

    def test_a_size_that_holds_no_whole_number_is_refused_before_anything_is_stored(self, capsys: Captured) -> None:
        assert bench("half", "--sizes", "65535") == 2
        assert "65535 bytes hold no whole number of float32" in capsys.readouterr().err


class TestDoctor:
    def test_a_lossy_chain_is_given_numbers_that_it_takes(self, plugins: LoadedPlugins) -> None:
        assert trial(plugins, ["half", "xor"]).lossy == ("half",)

    def test_it_says_what_was_verified(self, plugins: LoadedPlugins) -> None:
        specs = adapter_specs([{"type": "memory", "serde": "half"}, {"type": "memory", "serde": "xor"}], plugins)
        context = CheckContext(ServerSettings.model_validate({}), plugins, adapters=specs)
        (lossy, _), (lossless, _) = adapter_trials(context)
        assert lossy.level is lossless.level is Level.OK
        assert "half changes numbers, so they were not compared" in lossy.text
        assert "byte for byte" not in lossy.text
        assert "byte for byte" in lossless.text

    def test_a_payload_that_changed_is_seen(self, plugins: LoadedPlugins) -> None:
        with pytest.raises(TrialFailedError, match="other bytes came back"):
            trial(plugins, "forgetful")

    def test_a_serde_that_takes_none_of_the_numbers_says_why(self, plugins: LoadedPlugins) -> None:
        with pytest.raises(ConfigError, match=r"memory: its serdes take no numbers.*no bound for bfloat16.*float32"):
            trial(plugins, "picky")


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_numbers_are_such_that_a_quantizer_has_something_to_do(name: str) -> None:
    pytest.importorskip("lmcache_serde", reason="lmcache-serde is not installed")
    layout = NumberLayouts().elements(b"", OBJECT_BYTES - 4096)
    assert layout is not None
    (spec,) = adapter_specs([{"type": "memory", "serde": name}], found := load_plugins(["serde"]))
    assert spec.serdes is not None
    serde = spec.serdes.serdes[0].open(found)
    payload = as_numbers(os.urandom(layout.payload_bytes))
    into = memoryview(bytearray(serde.stored_bytes_max(layout)))
    assert serde.encode(object_key(1), layout, memoryview(payload), into) < 0.6 * len(payload)
