"""`lmcache doctor` as a whole: results, report, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmcache_core.app.cli import main
from lmcache_tools.doctor.adapter_trial import Trial
from lmcache_tools.doctor.check_run import PROBES, run_checks
from lmcache_tools.doctor.compute_speed import ComputeSpeed, measured_speed
from lmcache_tools.doctor.model_shape import model_shape
from lmcache_tools.doctor.probe_result import Level
from lmcache_tools.doctor.tiers import copy_bytes_per_second, estimate_text, tier_results, tiers
from plugins.tools.tests.doctor.conftest import MakeContext
from plugins.tools.tests.doctor.test_adapter_trial import with_adapters
from plugins.tools.tests.doctor.test_model_shape import LLAMA_3_8B

Install = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
SPEED = ComputeSpeed(400e12, "--flops")
FAST = ("--no-http", "--port", "0", "--prometheus-port", "0", "--l1-size-gb", "0.05")


def trial(bytes_per_second: float, capacity: int | None = None) -> Trial:
    return Trial("x", 2**20, 0.1, 0.1, 0.1, 2**20 / bytes_per_second, True, capacity_bytes=capacity)


def test_a_tier_is_worth_it_when_loading_beats_computing_again(make_context: MakeContext) -> None:
    context = with_adapters(make_context(l1_size_gb=4), "memory", "memory", "memory")
    context = replace(context, model=model_shape(LLAMA_3_8B, None, "x"))
    assert context.chunk is not None
    seconds = context.model.prefill_flops(256) / SPEED.flops if context.model else 0.0
    break_even = context.chunk.chunk_bytes / seconds
    trials = [trial(2 * break_even, capacity=10 * 2**30), trial(break_even / 2), None]
    found = tiers(context, trials, 100 * break_even, SPEED)
    assert [tier.name for tier in found] == ["L1", "memory", "memory-2", "memory-3"]
    assert [tier.times_faster and round(tier.times_faster, 3) for tier in found] == [100.0, 2.0, 0.5, None]
    assert found[0].tokens == context.chunk.tokens_in(4 * 2**30)
    assert found[1].capacity_bytes == 10 * 2**30
    assert found[2].capacity_bytes == 2**30  # as its settings say
    assert found[2].result.startswith("not worth it: 2 times slower")
    assert [(each.probe, each.level) for each in tier_results(found)] == [("tier memory-2", Level.WARN)]
    assert "400 TFLOP/s (--flops)" in estimate_text(context, SPEED)


def test_nothing_is_said_of_what_is_not_known(make_context: MakeContext) -> None:
    context = with_adapters(make_context(), "memory")
    without_model = tiers(context, [trial(1e9)], 1e9, SPEED)
    assert [(tier.tokens, tier.load_seconds, tier.times_faster) for tier in without_model] == [(None, None, None)] * 2
    assert "give --model" in estimate_text(context, SPEED)
    known = replace(context, model=model_shape(LLAMA_3_8B, None, "x"))
    skipped = tiers(known, [], 1e9, None)
    assert skipped[1].load_seconds is None
    assert "give --flops" in estimate_text(known, None)


def test_a_probe_that_cannot_look_is_a_warning_and_no_end(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(context: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lmcache_tools.doctor.check_run.PROBES", (blind,))
    report = run_checks(make_context(), None, tries_adapters=False)
    assert [(each.probe, each.level) for each in report.results] == [("blind", Level.WARN)]
    assert not report.failed


def test_secrets_that_an_adapter_quotes_are_hidden(install: Install, capsys: Captured) -> None:
    install(
        "leaky",
        """
        from pydantic import SecretStr
        from lmcache_core import Offer, PluginSettings, hookimpl

        class LeakySettings(PluginSettings):
            password: SecretStr

        def open_it(settings, context):
            raise OSError("cannot log in with " + settings.password.get_secret_value())

        @hookimpl
        def lmcache_l2_adapters():
            return [Offer("leaky", "for tests", "leaky_plugin:open_it", "leaky_plugin:LeakySettings")]
        """,
    )
    flags = ("--l2-adapter", '{"type": "leaky", "password": "hunter2-hunter2"}', *FAST)
    for way in ("--json", "--fix-hints"):
        assert main(["doctor", way, *flags]) == 1
        said = capsys.readouterr()
        assert "cannot log in with **********" in said.out
        assert "hunter2" not in said.out + said.err


def test_speeds_of_this_machine_are_plausible() -> None:
    assert copy_bytes_per_second() > 1e8
    speed = measured_speed()
    assert speed is None or speed.flops > 1e8


def test_a_library_that_is_broken_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> ComputeSpeed:
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr("lmcache_tools.doctor.compute_speed.find_spec", lambda name: object())
    monkeypatch.setattr("lmcache_tools.doctor.compute_speed._of_torch", broken)
    monkeypatch.setattr("lmcache_tools.doctor.compute_speed._of_numpy", lambda: SPEED)
    assert measured_speed() == SPEED
    monkeypatch.setattr("lmcache_tools.doctor.compute_speed._of_numpy", broken)
    assert measured_speed() is None


def test_the_report_as_json(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    flags = (
        "--model",
        str(tmp_path),
        "--tp",
        "2",
        "--flops",
        "400",
        "--l2-adapter",
        '{"type": "memory"}',
        *FAST,
        "--page-size",
        "16",
    )
    code = main(["doctor", "--json", *flags])
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["ok"] else 1)
    assert report["ok"] is not any(result["level"] == "fail" for result in report["results"])
    assert {"probe", "level", "text", "remedy", "fix", "facts"} == set(report["results"][0])
    assert len({result["probe"] for result in report["results"]}) >= len(PROBES)
    assert report["model"]["bytes_per_token"] == pytest.approx(131072, rel=0.01)
    assert report["model"]["shards"] == 2
    assert [tier["name"] for tier in report["tiers"]] == ["L1", "memory"]
    assert all(tier["load_seconds"] > 0 for tier in report["tiers"])


def test_the_report_for_people(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path / "file" / "l2")})
    pytest.importorskip("lmcache_l2_fs")
    flags = ("--l2-adapter", adapter, *FAST, "--max-workers", "4000")
    assert main(["doctor", "--fix-hints", "--faults", *flags]) == 1
    shown = capsys.readouterr().out
    assert f"{tmp_path}/file/l2 does not exist, and this user cannot make it" in shown
    assert "# processors" in shown.partition("what would help:")[2]
    assert "\nok " not in shown
    assert shown.splitlines()[-1].endswith("failures")


def test_skipped_adapters_are_not_opened(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_tools.doctor.check_run.adapter_trials", None)
    main(["doctor", "--skip-adapters", "--l2-adapter", '{"type": "memory"}', *FAST])
    assert "adapter memory" not in capsys.readouterr().out


def test_an_adapter_that_is_not_available_is_a_row_like_the_others(capsys: Captured) -> None:
    flags = ("--l2-adapter", '{"type": "fss"}', "--l2-adapter", '{"type": "memory"}', *FAST)
    assert main(["doctor", *flags]) == 1
    lines = capsys.readouterr().out.splitlines()
    (fault,) = (line for line in lines if "adapter fss" in line)
    assert fault.startswith("fail")
    assert "--l2-adapter[0]: no L2 adapter is called 'fss'" in fault
    (configuration,) = (line for line in lines if "  configuration" in line)
    assert configuration.startswith("fail")
    assert "does not start" in configuration
    assert any("adapter memory" in line and line.startswith("ok") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--flops", "0"], "--flops 0: expected more than 0"),
        (["--parameters", "nan"], "--parameters nan: expected more than 0"),
        (["--tp", "0"], "--tp 0: expected 1 to 1024"),
        (["--model", "/nowhere"], "--model /nowhere: cannot be read: No such file"),
        (["--chunk-size", "x"], "--chunk-size is 'x'"),
        (["--modell", "x"], "no flag is called --modell; did you mean --model?"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: Captured) -> None:
    assert main(["doctor", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
