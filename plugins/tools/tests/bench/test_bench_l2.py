"""`lmcache bench l2`, from its command line to its exit code, through real adapters and third-party ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.cli import main
from lmcache_core.l1.arena import SEGMENT_PREFIX, SHM_ROOT

Captured = pytest.CaptureFixture[str]
SMALL = ("--sizes", "64KiB,100KiB", "--depths", "1,3", "--bytes", "512KiB", "--rounds", "2", "--timeout-seconds", "20")
THIRD_PARTY = """
    import time
    from lmcache_core import Capability, Offer, Outcome, Usage, hookimpl
    from lmcache_l2_adapter import BlockingL2Adapter

    class ThirdParty(BlockingL2Adapter):
        capabilities = Capability.{capabilities}
        max_object_bytes = {longest}

        def __init__(self, context):
            self.kept = {{}}
            super().__init__(context, workers=2)

        def store(self, key, buffer):
            {store}
            self.kept[key] = bytes(buffer.view)
            return Outcome.DONE

        def load(self, key, buffer):
            data = bytearray(self.kept[key])
            {load}
            buffer.view[:] = data
            return Outcome.DONE

        def contains(self, key):
            return key in self.kept

        def delete(self, key):
            return Outcome.DONE if self.kept.pop(key, None) else Outcome.MISSING

        def usage(self):
            return None

    def open_it(settings, context):
        return ThirdParty(context)

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "of a third party", "acme_plugin:open_it", capabilities=ThirdParty.capabilities)]
    """


def third_party(
    capabilities: str = "DELETE", store: str = "pass", load: str = "pass", longest: int | None = None
) -> str:
    return THIRD_PARTY.format(capabilities=capabilities, store=store, load=load, longest=longest)


def bench(*arguments: str, adapter: str = '{"type": "memory", "max_size_gb": 0.1}') -> int:
    return main(["bench", "l2", "--l2-adapter", adapter, *SMALL, *arguments])


def fs(folder: Path) -> str:
    return json.dumps({"type": "fs", "base_path": str(folder)})


def test_every_cell_is_measured_beside_its_medium(capsys: Captured, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    assert bench("--loads", "0,50,100", "--json", "--results", str(results)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads(results.read_text())
    cells = {(cell["object_bytes"], cell["depth"], cell["loads_percent"]): cell for cell in answer["cells"]}
    assert set(cells) == {
        (size, depth, share) for size in (65536, 102400) for depth in (1, 3) for share in (0, 50, 100)
    }
    for (size, _, _), cell in cells.items():
        for side in ("own", "medium"):
            rounds = cell[side]["rounds"]
            assert len(rounds) == 2
            assert {one["bytes"] for one in rounds} == {524288 // size * size}
            assert cell[side]["latency_p50_seconds"] <= cell[side]["latency_p99_seconds"]
        pairs = zip(cell["own"]["rounds"], cell["medium"]["rounds"], strict=True)
        ratios = sorted(medium["seconds"] / own["seconds"] for own, medium in pairs)
        assert cell["of_medium"] == pytest.approx({"median": sum(ratios) / 2, "least": ratios[0], "most": ratios[1]})
    # three rounds of two depths; 8 and 5 objects; half of them and all of them; by the adapter and its medium
    assert answer["objects_verified"] == 3 * 2 * ((4 + 8) + (2 + 5)) * 2
    assert answer["wrong"] == []
    assert answer["left_behind"] == {"memory": 0}
    assert not answer["interrupted"]


def test_files_are_gone_afterwards_and_nothing_else_is_touched(capsys: Captured, tmp_path: Path) -> None:
    theirs = tmp_path / "kv" / "theirs.kv"
    theirs.parent.mkdir()
    theirs.write_bytes(b"of another process")
    assert bench(adapter=fs(theirs.parent)) == 0
    page = capsys.readouterr().out
    assert "100 %" not in page.splitlines()[0]
    assert "objects are what was stored, byte for byte" in page
    assert f"a file that is written anew in each round, in {theirs.parent}" in page
    left = {path.name for path in theirs.parent.rglob("*") if path.is_file()}
    assert left <= {"theirs.kv", ".lock"}
    assert theirs.read_bytes() == b"of another process"


def test_adapters_take_turns(capsys: Captured, tmp_path: Path) -> None:
    assert bench("--l2-adapter", fs(tmp_path / "a"), "--json", "--medium", "none", "--no-verify") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {cell["adapter"] for cell in answer["cells"]} == {"memory", "fs"}
    assert all(cell["medium"] is None and cell["of_medium"] is None for cell in answer["cells"])
    assert answer["media"] == dict.fromkeys(("memory", "fs"), "not measured: not asked for")
    assert answer["objects_verified"] is None


def test_time_is_a_limit_too(capsys: Captured) -> None:
    assert bench("--rounds", "1000", "--seconds", "0.001", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {len(cell["own"]["rounds"]) for cell in answer["cells"]} == {2}


def test_a_wrong_byte_is_the_end_and_not_a_figure(capsys: Captured, install: object) -> None:
    install("acme", third_party(load="data[-1] ^= 1"))  # type: ignore[operator]
    assert bench("--warmup", "0", "--json", adapter='{"type": "acme"}') == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["objects_verified"] == 0
    assert {cell["loads_percent"] for cell in answer["cells"]} == {0}
    assert bench(adapter='{"type": "acme"}') == 1
    page = capsys.readouterr().out
    assert "acme: object " in page
    assert "the digest of the payload does not match" in page
    assert bench("--no-verify", adapter='{"type": "acme"}') == 0
    assert "what was loaded was not checked" in capsys.readouterr().out


def test_an_adapter_that_fails_is_named_with_what_it_failed_at(capsys: Captured, install: object) -> None:
    install("acme", third_party(store="return Outcome.REJECTED"))  # type: ignore[operator]
    assert bench(adapter='{"type": "acme"}') == 1
    assert "lmcache: acme: store of an object of 64 KiB: rejected;" in capsys.readouterr().err


def test_an_adapter_that_hangs_is_abandoned_and_what_it_may_write_to_stays(
    capsys: Captured, install: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_tools.bench.open_lane.CLOSE_SECONDS", 0.2)
    install("acme", third_party(load="time.sleep(2)"))  # type: ignore[operator]
    before = set(SHM_ROOT.glob(f"{SEGMENT_PREFIX}bench-*"))
    assert bench("--timeout-seconds", "0.3", "--warmup", "0", adapter='{"type": "acme"}') == 1
    assert "nothing has ended within 0.3 s" in capsys.readouterr().err
    assert set(SHM_ROOT.glob(f"{SEGMENT_PREFIX}bench-*")) <= before
    time.sleep(2)  # the loads go on, into memory that is still there


def test_what_cannot_be_deleted_is_not_stored_unless_asked(capsys: Captured, install: object) -> None:
    install("acme", third_party(capabilities="NONE"))  # type: ignore[operator]
    assert bench(adapter='{"type": "acme"}') == 2
    assert "--leave-behind allows that" in capsys.readouterr().err
    assert bench("--leave-behind", "--json", adapter='{"type": "acme"}') == 0
    assert json.loads(capsys.readouterr().out)["left_behind"]["acme"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--depths", "0"], 2, "--depths: '0'"),
        (["--sizes", "4KiB"], 2, "expected 8192 or more"),
        (["--loads", "101"], 2, "from 0 to 100"),
        (["--rounds", "0"], 2, "--rounds 0"),
        (["--seconds", "nan"], 2, "--seconds nan"),
        (["--l2-adapter", "{"], 2, "--l2-adapter[1]: not JSON"),
        (["--l2-adapter", "[]"], 2, "--l2-adapter[1]: expected a JSON object"),
        (["--l2-adapter", '{"type": "memroy"}'], 2, "did you mean 'memory'"),
        (["--medium", "/nonexistent"], 2, "--medium '/nonexistent' is not a directory"),
        (["--png", "/nonexistent/a.png"], 2, "--png /nonexistent/a.png: there is no such directory"),
        (["--bytes", "200MiB"], 2, "free, and a pass stores 200 MiB"),
        (["--sizes", "9999GiB"], 3, "needs 29.3 TiB more memory"),
        (["--l2-adapter", '{"type": "fs", "base_path": "/proc/no"}'], 3, "base_path '/proc/no' cannot be used"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], code: int, said: str, capsys: Captured) -> None:
    assert bench(*arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_object_that_the_adapter_never_takes_is_refused_beforehand(capsys: Captured, install: object) -> None:
    install("acme", third_party(longest=65536))  # type: ignore[operator]
    assert bench(adapter='{"type": "acme"}') == 2
    assert "takes objects of at most 64 KiB (65536 bytes), and --sizes asks for 102400" in capsys.readouterr().err


def test_without_an_adapter_it_says_what_is_missing(capsys: Captured) -> None:
    assert main(["bench", "l2"]) == 2
    assert "--l2-adapter is missing" in capsys.readouterr().err


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "speed.png"
    assert bench("--png", str(picture), "-q") == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_known_before_anything_is_measured(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("lmcache_tools.bench.plot.import_module", missing)
    assert bench("--png", str(tmp_path / "speed.png"), adapter=fs(tmp_path / "kv")) == 2
    assert "pip install 'lmcache-tools[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "kv").exists()


def test_an_adapter_around_another_one_is_measured_as_one(capsys: Captured) -> None:
    wrapped = '{"type": "fault_inject", "inner": {"type": "memory", "max_size_gb": 0.1}}'
    assert bench("--json", adapter=wrapped) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["left_behind"] == {"fault_inject": 0}
    assert "--medium memory" in answer["media"]["fault_inject"]


def test_ctrl_c_shows_what_is_known_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    command = [sys.executable, "-m", "lmcache_core", "bench", "l2", "--l2-adapter", fs(folder), *SMALL]
    environment: dict[str, Any] = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = subprocess.Popen(
        [*command, "--rounds", "1000", "--depths", "3", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while not list(folder.rglob("*.kv")) and time.monotonic() < end:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, error
    answer = json.loads(out)
    assert answer["interrupted"]
    assert answer["left_behind"] == {"fs": 0}
    assert not list(folder.rglob("*.kv"))
    assert not error
