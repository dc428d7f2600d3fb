"""`lmcache plugins check`: from requirements to lines and an exit code, with requirements that were made for these tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from textwrap import dedent

import pytest

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.cli import main
from lmcache_core.app.console.command_line import PluginSelection, selection_from
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_devkit.check_command import summary
from lmcache_devkit.check_reporter import requirement_of
from lmcache_devkit.checks import trial_opening
from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.conformance import CheckResult, check_file, run_checks

Install = Callable[..., Path]
ADAPTER = OfferKind.L2_ADAPTER
REQUIREMENTS = """
    import json, os
    import pytest

    SUBJECT = json.loads(os.environ["LMCACHE_CHECK"])

    class TestOffer:
        def test_it_receives_what_to_check(self):
            assert SUBJECT == {"kind": "l2_adapter", "name": "acme", "settings": {"password": "hunter2"}}

        @pytest.mark.parametrize("number", [1, 2])
        def test_a_number_is_one(self, number):
            assert number == 1, f"{number} with {SUBJECT['settings']['password']}"

        def test_what_is_not_declared_does_not_apply(self, record_property):
            pytest.skip("the adapter does not declare LIST")

        @pytest.fixture
        def left(self, record_property):
            yield
            record_property("lmcache_left_behind", ["one", "two"])

        def test_what_cannot_be_removed_is_named(self, left):
            pass

        @pytest.fixture
        def broken(self):
            yield
            raise OSError("cannot clean up")

        def test_a_tear_down_that_fails_breaks_the_requirement(self, broken):
            pass
    """
OFFER = """
    from pydantic import SecretStr
    from lmcache_core import Offer, PluginSettings, hookimpl

    class AcmeSettings(PluginSettings):
        password: SecretStr

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "for tests", "acme_plugin:open_it", "acme_plugin:AcmeSettings")]
    """


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a file of requirements in the place of the suite's."""

    def put(source: str) -> Path:
        folder = tmp_path / "checks"
        folder.mkdir(exist_ok=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        path = folder / "check_l2_adapter.py"
        path.write_text(dedent(source))
        monkeypatch.setattr("lmcache_devkit.check_command.check_file", lambda kind: path)
        return path

    return put


def results(path: Path, only: str | None = None) -> dict[str, CheckResult]:
    return {
        each.requirement: each
        for each in run_checks(path, ADAPTER, "acme", {"password": "hunter2"}, PluginSelection(), only)
    }


# requirements and results


def test_each_requirement_has_its_result(requirements: Callable[[str], Path]) -> None:
    found = results(requirements(REQUIREMENTS))
    assert {requirement: result.outcome for requirement, result in found.items()} == {
        "it receives what to check": "holds",
        "a number is one (1)": "holds",
        "a number is one (2)": "broken",
        "what is not declared does not apply": "not applicable",
        "what cannot be removed is named": "holds",
        "a tear down that fails breaks the requirement": "broken",
    }
    assert found["a number is one (2)"].reason.splitlines()[:2] == ["AssertionError: 2 with hunter2", "assert 2 == 1"]
    assert "test_a_number_is_one" in found["a number is one (2)"].whole
    assert found["what is not declared does not apply"].reason == "the adapter does not declare LIST"
    assert found["what cannot be removed is named"].left == ["one", "two"]
    assert "cannot clean up" in found["a tear down that fails breaks the requirement"].reason


def test_some_requirement_alone(requirements: Callable[[str], Path]) -> None:
    assert list(results(requirements(REQUIREMENTS), "receives or removed")) == [
        "it receives what to check",
        "what cannot be removed is named",
    ]
    assert list(results(requirements(REQUIREMENTS), "receives what to check")) == ["it receives what to check"]
    with pytest.raises(ConfigError, match="no requirement matches -k 'zzz'"):
        results(requirements(REQUIREMENTS), "zzz")


def test_nothing_of_the_current_directory_applies(
    requirements: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = requirements("def test_the_way_things_are(): pass")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (elsewhere / "conftest.py").write_text("raise AssertionError('read')\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert [each.outcome for each in results(path).values()] == ["holds"]
    assert sorted(path.name for path in elsewhere.iterdir()) == ["conftest.py", "pytest.ini"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import no_such_library",
            "the conformance kit failed with exit code 2: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        (
            "import os, signal\ndef test_something_dies(): os.kill(os.getpid(), signal.SIGKILL)",
            "the conformance kit was killed by SIGKILL during the requirement 'something dies'",
        ),
    ],
)
def test_a_suite_that_fails_is_not_a_result(requirements: Callable[[str], Path], source: str, says: str) -> None:
    with pytest.raises(LMCacheError, match=says):
        results(requirements(source))


def test_the_settings_are_in_no_command_line(requirements: Callable[[str], Path]) -> None:
    source = """
        from pathlib import Path
        def test_this_is_not_shown():
            assert b"hunter2" not in Path("/proc/self/cmdline").read_bytes()
        """
    assert results(requirements(source))["this is not shown"].outcome == "holds"


def test_kinds_without_requirements() -> None:
    with pytest.raises(ConfigError, match="there are no requirements for a command to be checked against"):
        check_file(OfferKind.COMMAND)


def test_every_kind_of_object_has_requirements() -> None:
    for kind in OfferKind:
        if kind is not OfferKind.COMMAND:
            assert check_file(kind).is_file()


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("a/b.py::TestFs::test_what_was_stored_is_found", "what was stored is found"),
        ("a.py::test_a_limit[3-x_y]", "a limit (3-x_y)"),
    ],
)
def test_a_requirement_is_words(node: str, words: str) -> None:
    assert requirement_of(node) == words


def test_the_check_considers_the_same_plugins(requirements: Callable[[str], Path]) -> None:
    source = """
        import os
        def test_it_is_notified():
            names = ("LMCACHE_PLUGINS", "LMCACHE_NO_PLUGINS", "LMCACHE_SAFE_MODE")
            assert [os.environ[name] for name in names] == ["a,b", "c", "1"]
        """
    selection = PluginSelection(("a", "b"), ("c",), True)
    assert selection_from(selection.variables()) == selection
    assert [each.outcome for each in run_checks(requirements(source), ADAPTER, "acme", {}, selection)] == ["holds"]


# the command


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(["plugins", "check", "acme", *arguments])
    return code, capsys.readouterr().out.splitlines()


SETTINGS = ("--settings", '{"password": "hunter2"}')


def test_failures_are_short_and_secrets_are_masked(
    install: Install, requirements: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", OFFER)
    requirements(REQUIREMENTS)
    code, lines = check(capsys, *SETTINGS)
    assert code == 1
    assert lines[:3] == [
        "does not hold: a number is one (2)",
        "    AssertionError: 2 with **********",
        "    assert 2 == 1",
    ]
    assert lines[-4:] == [
        "2 objects were left behind, because the adapter could not or must not delete what it stored:",
        "    one",
        "    two",
        "acme: 3 requirements hold, 2 do not, 1 does not apply",
    ]


def test_verbose_names_every_requirement(
    install: Install, requirements: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", OFFER)
    requirements(REQUIREMENTS)
    code, lines = check(capsys, *SETTINGS, "--verbose", "-k", "receives or applies or apply or two or number")
    assert code == 1
    assert "holds: it receives what to check" in lines
    assert "does not apply: what is not declared does not apply (the adapter does not declare LIST)" in lines
    assert any("def test_a_number_is_one" in line or "in test_a_number_is_one" in line for line in lines)
    assert not any("hunter2" in line for line in lines)


def test_when_every_requirement_holds_the_summary_is_all_there_is(
    install: Install, requirements: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", OFFER)
    requirements("def test_one(): pass")
    file = tmp_path / "settings.json"
    file.write_text('{"type": "acme", "password": "hunter2"}')
    assert check(capsys, "--settings-file", str(file)) == (0, ["acme: 1 requirement holds, 0 do not, 0 do not apply"])


def test_the_summary_counts() -> None:
    assert summary("fs", {"holds": 61, "not applicable": 4}) == "fs: 61 requirements hold, 0 do not, 4 do not apply"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--settings: field 'password' is required"),
        (["--settings", "{"], "--settings: not JSON: "),
        (["--settings", "[]"], "--settings: expected a JSON object of settings"),
        (["--settings", '{"pasword": 1}'], "no field is called 'pasword'; did you mean 'password'?"),
        (["--settings", "{}", "--settings-file", "x"], "--settings and --settings-file: give one of them"),
        (
            ["--settings-file", "/no/such/file"],
            "--settings-file /no/such/file: cannot be read: No such file or directory",
        ),
    ],
)
def test_wrong_settings_are_one_line(
    install: Install,
    requirements: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    install("acme", OFFER)
    requirements("def test_one(): raise AssertionError('ran')")
    assert main(["plugins", "check", "acme", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lmcache: ")
    assert says in said
    assert said.count("\n") == 1


# an offer that cannot be opened

UNOPENED = """
    from pydantic import SecretStr
    from lmcache_core import ConfigError, Offer, PluginSettings, ResourceError, hookimpl

    class AcmeSettings(PluginSettings):
        password: SecretStr = SecretStr("hunter2")

    def fault(settings, *context): {fault}

    @hookimpl
    def lmcache_{hook}():
        return [Offer("acme", "for tests", "acme_plugin:fault", "acme_plugin:AcmeSettings")]
    """


@pytest.fixture
def seen_by_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed for the test is there for the process that runs the requirements, too."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize(
    ("hook", "fault", "code", "says"),
    [
        ("l2_adapters", "raise ConfigError('no such bucket')", 2, "no such bucket"),
        ("subscribers", "raise ResourceError('port 1 is taken')", 3, "port 1 is taken"),
        ("eviction_policies", "raise ConfigError('not with ' + 'hunter2')", 2, "not with **********"),
    ],
)
def test_what_the_user_can_fix_is_said_once_and_no_requirement_is_run(
    install: Install,
    seen_by_children: None,
    capsys: pytest.CaptureFixture[str],
    hook: str,
    fault: str,
    code: int,
    says: str,
) -> None:
    install("acme", UNOPENED.replace("{hook}", hook).replace("{fault}", fault))
    assert main(["plugins", "check", "acme"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"lmcache: {says}\n"


def test_a_bug_is_said_once_with_where_it_is(
    install: Install, seen_by_children: None, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", UNOPENED.replace("{hook}", "l2_adapters").replace("{fault}", "raise OSError('key hunter2')"))
    assert main(["plugins", "check", "acme", "--settings", '{"password": "hunter2"}']) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Traceback (most recent call last):\n")
    last = said.err.splitlines()[-1]
    assert last.startswith("lmcache: L2 adapter 'acme' (acme-dist 1.0) cannot be opened: OSError: key **********")
    assert "acme_plugin.py:8)" in last
    assert "hunter2" not in said.err


def test_a_broken_contract_is_one_line(
    install: Install, seen_by_children: None, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", UNOPENED.replace("{hook}", "l2_adapters").replace("{fault}", "return None"))
    assert main(["plugins", "check", "acme"]) == 4
    says = "L2 adapter 'acme' (acme-dist 1.0) opens as NoneType, not as L2Adapter"
    assert capsys.readouterr() == ("", f"lmcache: {says}\n")


# a sign of life


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_many_checks_hold_so_far_and_which_one_runs(
    install: Install, requirements: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", OFFER)
    requirements("def test_one(): pass\ndef test_two(): pass")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert main(["plugins", "check", "acme", *SETTINGS]) == 0
    shown = [text for text in terminal.getvalue().split("\r\x1b[K") if text]
    assert shown == [
        *("0 requirements hold ...", "0 requirements hold ... one"),
        *("1 requirement holds ...", "1 requirement holds ... two"),
        "2 requirements hold ...",
    ]
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_nothing_is_shown_without_a_terminal(
    install: Install, requirements: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", OFFER)
    requirements("def test_one(): pass")
    assert check(capsys, *SETTINGS)[0] == 0
    assert main(["plugins", "check", "acme", *SETTINGS]) == 0
    assert capsys.readouterr().err == ""


def test_where_no_terminal_is_a_check_that_takes_long_is_named_once(
    install: Install,
    requirements: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("lmcache_devkit.check_command._QUIET_SECONDS", 0.5)
    install("acme", OFFER)
    requirements("import time\ndef test_one(): pass\ndef test_two(): time.sleep(2)")
    assert main(["plugins", "check", "acme", *SETTINGS]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in said] == ["two"]
    assert said[0].startswith("still running after ")


# checks that hang


def test_a_check_that_hangs_is_named_with_where_it_hangs_and_the_next_one_runs(
    requirements: Callable[[str], Path],
) -> None:
    """In its body, in what cleans up after it, and in a thread that it waits for."""
    found = results(
        requirements("""
        import threading, time
        import pytest

        class TestOffer:
            check_seconds_max = 0.5

            def test_it_waits(self):
                try:
                    threading.Event().wait()
                finally:
                    threading.Event().wait()

            def test_it_ends(self): pass

            @pytest.fixture
            def thread(self):
                thread = threading.Thread(target=threading.Event().wait, name="worker")  # no daemon: it outlives the checks
                thread.start()
                yield
                thread.join()

            def test_it_never_closes(self, thread): pass
        """)
    )
    assert {requirement: result.outcome for requirement, result in found.items()} == {
        "it waits": "broken",
        "it ends": "holds",
        "it never closes": "broken",
    }
    assert "it took longer than 0.5 s" in found["it waits"].reason
    assert "thread worker is at" in found["it never closes"].reason
    assert "threading.Event().wait()" in found["it waits"].whole


def test_hypothesis_does_not_try_a_check_that_hangs_again(requirements: Callable[[str], Path]) -> None:
    found = results(
        requirements("""
        import threading
        from hypothesis import given, strategies as st

        class TestOffer:
            check_seconds_max = 0.5
            tried = []

            @given(st.integers())
            def test_it_waits(self, number):
                self.tried.append(number)
                threading.Event().wait()

            def test_once(self):
                assert len(self.tried) == 1
        """)
    )
    assert {requirement: result.outcome for requirement, result in found.items()} == {
        "it waits": "broken",
        "once": "holds",
    }


def test_after_three_checks_that_hang_no_other_one_is_run(
    install: Install, requirements: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each further one would take its whole limit, too."""
    install("acme", OFFER)
    requirements("""
        import time
        import pytest

        class TestOffer:
            check_seconds_max = 0.2

            @pytest.mark.parametrize("number", range(30))
            def test_it_waits(self, number): time.sleep(600)
        """)
    code, lines = check(capsys, *SETTINGS)
    assert code == 1
    assert lines[-1] == "acme: 0 requirements hold, 3 do not, 0 do not apply"
    assert "warning: 3 checks took longer than their limit, so those after them were not run" in lines


def test_native_code_that_never_returns_is_named(
    requirements: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be interrupted, so the suite's process is ended."""
    monkeypatch.setattr("lmcache_devkit.conformance._STUCK_SECONDS", 1.0)
    found = results(
        requirements("""
        import re

        class TestOffer:
            check_seconds_max = 0.5

            def test_it_never_returns(self): re.match("(a*)*b", "a" * 60)
            def test_it_is_not_run(self): pass
        """)
    )
    assert {requirement: result.outcome for requirement, result in found.items()} == {"it never returns": "broken"}
    assert "could not be interrupted" in found["it never returns"].reason


def test_opening_that_hangs_is_said_and_no_check_is_run(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_opening, "CHECK_SECONDS_MAX", 0.5)
    fault = "import threading; threading.Event().wait()"
    install("acme", UNOPENED.replace("{hook}", "l2_adapters").replace("{fault}", fault))
    unopened = trial_opening.try_to_open(CheckRequest(ADAPTER, "acme"))
    assert unopened is not None
    # Lines about other threads of this process may follow.
    assert unopened.text.splitlines()[0] == "opening and closing it once: it took longer than 0.5 s"
    assert "acme_plugin.py" in unopened.traceback


NEVER_DELETES = """
    import threading
    from lmcache_core import Offer, hookimpl
    from lmcache_core.builtin.memory_l2 import CAPABILITIES, MemoryAdapter, MemorySettings

    class Acme(MemoryAdapter):
        def delete(self, key):
            threading.Event().wait()

    @hookimpl
    def lmcache_l2_adapters():
        capabilities = CAPABILITIES
        return [Offer("acme", "s", "acme_plugin:Acme", "lmcache_core.builtin.memory_l2:MemorySettings", capabilities)]
    """


@pytest.mark.slow
def test_of_an_adapter_whose_delete_never_returns_three_checks_are_run(
    install: Install, seen_by_children: None, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", NEVER_DELETES)
    code, lines = check(capsys, "-k", "deleted or deleting")
    assert code == 1
    assert "warning: 3 checks took longer than their limit, so those after them were not run" in lines
    assert sum(line.startswith("does not hold: ") for line in lines) == 3
    assert any("the answer to job" in line and line.endswith("did not come within 30 s") for line in lines)


# interruption

SLOW = """
    import os, subprocess, sys, time
    from pathlib import Path
    import pytest

    HERE = Path(os.environ["PROOF"])

    @pytest.fixture
    def backend():
        deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
        child.stdout.readline()
        (HERE / "pids").write_text(f"{os.getpid()} {child.pid}")
        yield
        (HERE / "cleaned").touch()

    def test_something_takes_long(backend):
        time.sleep(600)
    """
RUN = """
import sys
from pathlib import Path
from lmcache_devkit.conformance import run_checks
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.console.command_line import PluginSelection
try:
    for result in run_checks(Path(sys.argv[1]), OfferKind.L2_ADAPTER, "acme", {}, PluginSelection()):
        pass
except KeyboardInterrupt:
    sys.exit(9)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_cleans_up_and_leaves_nothing_running(
    requirements: Callable[[str], Path], tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "PROOF": str(tmp_path), "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", RUN, str(requirements(SLOW))], env=environment)
    try:
        pids = wait_for(tmp_path / "pids")
        child.send_signal(number)
        assert child.wait(30) == 9
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "cleaned").exists()
    assert not any(is_running(pid) for pid in pids)
    assert list(tmp_path.glob("lmcache-check-*")) == []


def wait_for(path: Path) -> Sequence[int]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and len(numbers := path.read_text().split()) == 2:
            return [int(number) for number in numbers]
        time.sleep(0.05)
    raise AssertionError(f"{path} did not come")


def is_running(pid: int) -> bool:
    """A process that has ended and was not waited for yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupted_check_sums_up_what_it_knows(
    requirements: Callable[[str], Path], install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("acme", OFFER)
    requirements("""
        import os, signal, time
        def test_one(): pass
        def test_two(): assert False, "seen"
        def test_three():
            time.sleep(1)  # so that the others are counted
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(600)
        """)
    code, lines = check(capsys, *SETTINGS)
    assert code == 130
    assert "does not hold: two" in lines
    assert lines[-1] == "acme: 1 requirement holds, 1 does not, 0 do not apply; interrupted"


def test_nothing_runs_any_more_when_an_interrupted_check_is_summed_up(
    requirements: Callable[[str], Path],
    install: Install,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes while a result is printed, that is, outside of what watches over the suite's process."""
    install("acme", OFFER)
    requirements("def test_one(): pass")
    happened: list[str] = []

    def run(*arguments: object) -> Generator[CheckResult]:
        try:
            yield CheckResult("one", "holds", "", "", [])
        finally:
            happened.append("ended")

    def interrupt(result: CheckResult, verbose: bool) -> list[str]:
        raise KeyboardInterrupt

    def sum_up(name: str, counts: Mapping[str, int]) -> str:
        happened.append("summed up")
        return ""

    module = "lmcache_devkit.check_command"
    monkeypatch.setattr(f"{module}.run_checks", run)
    monkeypatch.setattr(f"{module}._lines", interrupt)
    monkeypatch.setattr(f"{module}.summary", sum_up)
    assert check(capsys, *SETTINGS)[0] == 130
    assert happened == ["ended", "summed up"]


# what the suite warns of, and what it cannot read


def test_what_is_not_declared_and_there_is_a_warning(
    requirements: Callable[[str], Path], install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme", OFFER)
    requirements("""
        import warnings
        from lmcache_devkit import UndeclaredCapability
        def test_what_is_not_declared_is_not_there():
            warnings.warn("'acme' does not declare LIST with hunter2", UndeclaredCapability)
            warnings.warn("of no interest")
        def test_another(): pass
        """)
    code, lines = check(capsys, *SETTINGS)
    assert code == 0
    assert lines == [
        "warning: 'acme' does not declare LIST with **********",
        "acme: 2 requirements hold, 0 do not, 0 do not apply",
    ]


@pytest.mark.parametrize("only", ["a, b", "it's", "one and {"])
def test_an_expression_that_cannot_be_read_is_the_user_s(
    requirements: Callable[[str], Path], install: Install, capsys: pytest.CaptureFixture[str], only: str
) -> None:
    install("acme", OFFER)
    requirements("def test_one(): pass")
    assert main(["plugins", "check", "acme", *SETTINGS, "-k", only]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"lmcache: -k '{only}' cannot be read: ")
    assert said.err.endswith("words with and, or, not are expected\n")
    assert said.err.count("\n") == 1


# the code that the server would import

PLACE = """
import sys
from pathlib import Path
from lmcache_devkit.conformance import run_checks
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.console.command_line import PluginSelection
import acme_place
for result in run_checks(Path(sys.argv[1]), OfferKind.L2_ADAPTER, "acme", {}, PluginSelection()):
    print(acme_place.NAME, result.outcome, result.reason)
"""


@pytest.mark.parametrize("safe", [True, False])
def test_the_check_imports_what_the_server_imports(
    requirements: Callable[[str], Path], tmp_path: Path, safe: bool
) -> None:
    """Neither the folder of the suite nor the current one comes first, where they do not for the server."""
    path = requirements("import acme_place\ndef test_it(): assert not acme_place.NAME")
    current, first, second = tmp_path / "current", tmp_path / "first", tmp_path / "second"
    for folder in (current, first, second, path.parent):
        folder.mkdir(exist_ok=True)
        (folder / "acme_place.py").write_text(f"NAME = {folder.name!r}\n")
    environment = {**os.environ, "PYTHONPATH": f"{first}{os.pathsep}{second}"}
    command = [sys.executable, *(["-P"] if safe else []), "-c", PLACE, str(path)]
    done = subprocess.run(command, cwd=current, env=environment, capture_output=True, text=True, timeout=60)
    server = "first" if safe else "current"
    assert done.stdout.splitlines()[0] == f"{server} broken AssertionError: assert not '{server}'", done.stderr


# for real


def test_core_s_own_adapter_keeps_some_of_its_requirements(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["plugins", "check", "memory", "--settings", json.dumps({"max_size_gb": 0.5}), "-k", "found or missing"]
    )
    last = capsys.readouterr().out.splitlines()[-1]
    assert code == 0, last
    assert last.startswith("memory: ")
    assert int(last.split()[1]) > 0
    assert " 0 do not, " in last
