"""`lmcache simulate` from its arguments to what it prints, writes and draws."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import CommandContext, ConfigError, EvictionDemand, EvictionPolicy, PluginError, ResourceError
from lmcache_policies.simulate.command import run_simulate
from plugins.policies.tests.simulate.stand_ins import Blunderer, Catalog, Diary, Hoarder, core_lru, write_prompts

PROMPTS = [[1, 2], [1, 3], [4], [1, 2], [1, 3]]


class Choosy(Diary):
    def __init__(self, depth: int = 1, names: Sequence[str] = ()) -> None:
        super().__init__()


class Faulty(Diary):
    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        raise KeyError("lost")


class Demanding(Diary):
    def __init__(self) -> None:
        raise ConfigError("Demanding: field 'quota' is required")


def catalog(**others: Callable[..., EvictionPolicy]) -> CommandContext:
    return CommandContext(Catalog({"LRU": core_lru, **others}))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_prompts(tmp_path / "trace.jsonl", PROMPTS))


def test_the_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulate([trace, "--capacity", "2,4", "--no-progress", "--all-policies"], catalog(A=Hoarder)) == 0
    assert (
        capsys.readouterr().out
        == f"""\
{trace}: 5 requests, 9 blocks, 4 distinct; 55.6 % were there before

capacity        2      4
in blocks       2      4
LRU          22.2   55.6*
A            44.4*  55.6*
clairvoyant  44.4   55.6

Hits in % of the blocks that requests asked for; * is the best policy of a column.  The clairvoyant knows the
future: nothing hits more.
"""
    )


def test_everything_as_json(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--capacity", "50%", "--evict-ratio", "1", "--block-bytes", "2KiB", "--block-tokens", "16"]
    assert run_simulate([trace, "--json", "-", "--no-progress", *options], catalog()) == 0
    report = json.loads(capsys.readouterr().out)
    for result in [report["policies"][0]["results"][0], report["clairvoyant"]["results"][0]]:
        assert result.pop("cpu_seconds") >= 0
    assert report == {
        "version": 1,
        "trace": {
            "path": trace,
            "format": "requests",
            "requests": 5,
            "blocks": 9,
            "distinct_blocks": 4,
            "longest_request_blocks": 2,
            "salts": 1,
            "chained": True,
        },
        "rules": {"block_bytes": 2048, "block_tokens": 16, "evict_ratio": 1.0},
        "capacities": [{"text": "50%", "blocks": 2}],
        "policies": [
            {
                "label": "LRU",
                "name": "LRU",
                "settings": {},
                "results": [
                    {
                        "capacity_blocks": 2,
                        "hit_rate": 0.222222,
                        "hits": 2,
                        "behind_gap": 0,
                        "evictions": 6,
                        "refused": 0,
                    }
                ],
            }
        ],
        "clairvoyant": {
            "exact": True,
            "results": [{"capacity_blocks": 2, "hit_rate": 0.444444, "hits": 4, "at_most": 4}],
        },
    }


def test_json_beside_the_table(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    run_simulate([trace, "--json", str(path), "--no-progress"], catalog())
    assert "clairvoyant" in capsys.readouterr().out
    assert json.loads(path.read_text())["trace"]["blocks"] == 9


def labels(context: CommandContext, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    run_simulate([*arguments, "--json", "-", "--no-progress", "--capacity", "2"], context)
    said = capsys.readouterr()
    return [policy["label"] for policy in json.loads(said.out)["policies"]], said.err


def test_by_default_all_compete_that_evict(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = catalog(Zoo=Diary, Ape=Diary, Keep=Hoarder, Demanding=Demanding)
    names, said = labels(context, capsys, trace)
    assert names == ["LRU", "Ape", "Zoo"]
    assert "Keep is left out: it evicts nothing (--all-policies takes it)" in said
    assert "Demanding is left out: Demanding: field 'quota' is required" in said


def test_all_policies(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = catalog(Keep=Hoarder, Choosy=Choosy)
    names, _ = labels(context, capsys, trace, "--all-policies", "--policy", '{"type": "Choosy", "depth": 3}')
    assert names == ["Choosy depth=3", "LRU", "Choosy", "Keep"]


def test_named_policies_each_once(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = '{"type": "Choosy", "depth": 3, "names": ["a"]}'
    arguments = [trace, *(part for text in ("Keep", settings, "Keep") for part in ("--policy", text))]
    names, _ = labels(catalog(Keep=Hoarder, Choosy=Choosy), capsys, *arguments)
    assert names == ["Keep", 'Choosy depth=3 names=["a"]']


def test_several_processes_find_the_same(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Local(Diary):
        """Cannot be pickled, so that it is replayed in this process."""

    found = []
    for jobs in ("1", "2"):
        run_simulate([trace, "--capacity", "2,4", "--jobs", jobs, "--no-progress"], catalog(Local=Local))
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            Blunderer,
            "eviction policy 'Bad' named slot 4711 as a victim, which holds nothing, after request 2 (Bad at 2)",
        ),
        (Faulty, "eviction policy 'Bad' failed (Bad at 2): KeyError: 'lost'"),
    ],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_policy_that_fails_is_named(trace: str, policy: Callable[[], EvictionPolicy], said: str, jobs: str) -> None:
    with pytest.raises(PluginError) as caught:
        run_simulate(
            [trace, "--policy", "Bad", "--capacity", "2", "--jobs", jobs, "--no-progress"], catalog(Bad=policy)
        )
    assert (str(caught.value), caught.value.plugin) == (said, "Bad")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "Nope"], "no eviction policy is called 'Nope'"),
        (["--policy", "{"], "--policy {: not a JSON object"),
        (["--policy", '{"depth": 3}'], 'expected a name, or an object such as {"type": "LRU"}'),
        (["--policy", '{"type": "LRU", "type": "X"}'], "key 'type' is given twice"),
        (["--capacity", "lots"], "--capacity: 'lots' is not a capacity"),
        (["--capacity", "1GiB"], "--capacity 1GiB needs --block-bytes"),
        (["--block-bytes", "big"], "--block-bytes: 'big' is not a size"),
        (["--evict-ratio", "2"], "--evict-ratio: '2' is not a share from 0 to 1"),
        (["--evict-ratio", "nan"], "--evict-ratio: 'nan' is not a share from 0 to 1"),
        (["--max-requests", "0"], "--max-requests: '0' is not a whole number above 0"),
        (["--polcy", "LRU"], "no flag is called --polcy; did you mean --policy?"),
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: the directory does not exist"),
    ],
)
def test_mistakes_are_one_line(trace: str, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_simulate([trace, *arguments], catalog())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_cannot_be_written(trace: str, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot be written: Is a directory"):
        run_simulate([trace, "--json", str(tmp_path), "--no-progress"], catalog())


def test_progress_is_a_line_per_replay_without_a_terminal(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_simulate([trace, "--capacity", "2"], catalog())
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["LRU at 2", "clairvoyant at 2"]
    assert lines[0].startswith("LRU at 2: 22.2 % hit, ")


def test_a_bar_on_a_terminal(trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run_simulate([trace, "--capacity", "2"], catalog())
    said = capsys.readouterr().err
    assert said.startswith("\r\x1b[K[")
    assert said.endswith("\r\x1b[K"), "nothing of it is left"
    assert "\n" not in said


def test_a_plot_without_matplotlib(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"--plot needs matplotlib: pip install 'lmcache-policies\[plot\]'"):
        run_simulate([trace, "--plot", "x.png"], catalog())


def test_a_plot(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="lmcache-policies[plot] is not installed")
    path = tmp_path / "x.png"
    run_simulate([trace, "--plot", str(path), "--capacity", "1,2,4", "--no-progress"], catalog(A=Diary))
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--plot .*x\.words: "):
        run_simulate([trace, "--plot", str(tmp_path / "x.words"), "--no-progress"], catalog())


def test_it_is_a_command_of_lmcache(trace: str) -> None:
    command = [sys.executable, "-m", "lmcache_core", "simulate", trace, "--policy", "ARC", "--json", "-"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["policies"][0]["name"] == "ARC"
