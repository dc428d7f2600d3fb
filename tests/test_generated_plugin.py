"""A distribution of a third party, generated and installed from its wheel: its settings and offers are first class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.test_file_l1 import CHUNK_TOKENS, take

FILES: Final = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling>=1.25"]
        build-backend = "hatchling.build"

        [project]
        name = "gen-cache-plugin"
        version = "1.0"
        dependencies = ["lmcache-core>=0.1,<0.2"]

        [project.entry-points."lmcache.plugins.v1"]
        gen = "gen_cache.plugin"

        [tool.hatch.build.targets.wheel]
        packages = ["gen_cache"]
        """,
    "gen_cache/__init__.py": "",
    "gen_cache/plugin.py": """
        from lmcache_core import Offer, SettingGroup, hookimpl

        HERE = "gen_cache.parts"

        @hookimpl
        def lmcache_settings():
            return [SettingGroup("Generated", f"{HERE}:GenFlags", f"{HERE}:apply")]

        @hookimpl
        def lmcache_subscribers():
            return [Offer("gen", "Listens", f"{HERE}:open_listener", f"{HERE}:GenSettings", check=f"{HERE}:check")]

        @hookimpl
        def lmcache_l1_memories():
            return [Offer("gen", "L1 in a mapping", f"{HERE}:open_memory", f"{HERE}:MemorySettings")]

        @hookimpl
        def lmcache_commands():
            return [Offer("gen", "says a word", f"{HERE}:COMMAND")]

        @hookimpl
        def lmcache_http_routes():
            return [Offer("gen", "`GET /gen`", f"{HERE}:open_routes", default=True)]
        """,
    "gen_cache/parts.py": """
        import ctypes
        import mmap
        from argparse import ArgumentParser

        from pydantic import Field

        from lmcache_core import (
            CheckResult, Command, ConfigError, HttpAnswer, HttpRoute, L1Memory, MemoryRegion, PluginSettings, Subscriber
        )

        class GenFlags(PluginSettings):
            gen_word: str | None = Field(None, description="The word that is listened for.")
            gen_times: int = Field(2, ge=1, le=9, description="How often it is said.")
            gen_memory: str | None = Field(None, description="The name of the mapping that L1 is in.")

        class GenSettings(PluginSettings):
            word: str = "none"
            times: int = 2

        class Listener(Subscriber):
            def __init__(self, settings):
                self.settings = settings

            def subscriptions(self):
                return {}

        class MemorySettings(PluginSettings):
            name: str

        class Mapping(L1Memory):
            def __init__(self, name, size_bytes):
                self._name = name
                self._mapping = mmap.mmap(-1, size_bytes)
                address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
                self._region = MemoryRegion(address, size_bytes, memoryview(self._mapping))

            @property
            def region(self):
                return self._region

            @property
            def kind(self):
                return self._name

            def close(self):
                self._region.view.release()

        def open_memory(settings, context):
            return Mapping(settings.name, context.size_bytes)

        def apply(values, given):
            memory = {"l1_memory:gen": {"name": values.gen_memory}} if values.gen_memory else {}
            if values.gen_word is None:
                if "gen_times" in given:
                    raise ConfigError("--gen-times does nothing without --gen-word; add it or leave this out")
                return memory
            return {**memory, "subscriber:gen": {"word": values.gen_word, "times": values.gen_times}}

        def open_listener(settings):
            return Listener(settings)

        def check(settings):
            yield CheckResult("warn", f"{settings.word} is said {settings.times} times", "say it once")

        def open_routes(settings, context):
            def answer(request):
                listener = context.subscriber("gen")
                return HttpAnswer({"word": listener.settings.word if listener else None})

            return [HttpRoute("GET", "/gen", answer, "The word")]

        def parser():
            parser = ArgumentParser("lmcache gen")
            parser.add_argument("--loud", action="store_true", help="in capitals")
            return parser

        def run(arguments, context):
            given = parser().parse_args(list(arguments))
            print("WORD" if given.loud else "word")
            return 0

        COMMAND = Command(run, lambda: [parser()])
        """,
}
QUIET: Final = ("--l1-size-gb", "0.01", "--prometheus-port", "0")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which commands see the installed wheel, and nothing else that this test made."""
    folder = tmp_path_factory.mktemp("generated")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(dedent(text))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"], cwd=folder, check=True, timeout=120
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    site = folder / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=120)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
    return {**kept, "PYTHONPATH": str(site), "COLUMNS": "200"}


def lmcache(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lmcache_core", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_flags_are_in_help_and_completion_and_the_reference(environment: dict[str, str]) -> None:
    said = lmcache(environment, "server", "--help")
    assert "Generated:" in said
    assert "--gen-word WORD" in said
    assert "--gen-memory MEMORY" in said
    script = lmcache(environment, "completion", "bash")
    assert "--gen-times" in script
    assert "--gen-memory" in script
    assert "--loud" in script
    document = subprocess.run(
        [sys.executable, "-m", "lmcache_tools.setting_reference"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert "## Generated" in document
    assert "`LMCACHE_GEN_TIMES`, integer, >= 1, <= 9, default `2`" in document
    assert "`LMCACHE_GEN_MEMORY`" in document


def test_its_settings_are_shown_with_who_gave_them(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "lmcache.toml"
    file.write_text('gen_word = "hello"\n')
    said = lmcache({**environment, "LMCACHE_GEN_TIMES": "3"}, "config", "show", "--json", "--config", str(file))
    rows = json.loads(said)["settings"]
    assert (rows["gen_word"]["value"], rows["gen_word"]["given_by"]) == ("hello", str(file))
    assert (rows["gen_times"]["value"], rows["gen_times"]["given_by"]) == (3, "LMCACHE_GEN_TIMES")
    said = lmcache(environment, "config", "show", "--json", "--gen-memory", "mapped")
    row = json.loads(said)["settings"]["gen_memory"]
    assert (row["value"], row["given_by"]) == ("mapped", "--gen-memory")
    shown = lmcache(environment, "plugins", "show", "plugin:gen")
    for part in (
        "--gen-word",
        ">= 1, <= 9",
        "--gen-memory",
        "subscriber:gen",
        "l1_memory:gen",
        "command:gen",
        "http_routes:gen",
        "gen-cache-plugin 1.0",
    ):
        assert part in shown


def test_its_offers_are_shown_with_their_settings(environment: dict[str, str]) -> None:
    shown = lmcache(environment, "plugins", "show", "l1_memory:gen")
    for part in ("L1 in a mapping", "gen-cache-plugin 1.0", "REQUIRED", "name     text  yes"):
        assert part in shown


def test_its_mistakes_are_answered_like_those_of_core(environment: dict[str, str]) -> None:
    assert "--gen-times is '12': input should be less than or equal to 9" in lmcache(
        environment, "server", "--gen-times", "12", code=2
    )
    assert "--gen-times does nothing without --gen-word" in lmcache(environment, "server", "--gen-times", "3", code=2)
    assert "did you mean --gen-word?" in lmcache(environment, "server", "--gen-wrd", "x", code=2)


def test_its_command_and_its_check_are_run(environment: dict[str, str]) -> None:
    assert lmcache(environment, "gen", "--loud") == "WORD\n"
    assert "says a word" in lmcache(environment, "--help")
    flags = ("--skip-adapters", "--gen-word", "hello", "--no-http", "--port", "0", *QUIET)
    said = json.loads(lmcache(environment, "doctor", "--json", *flags).partition("\nlmcache: ")[0])
    (found,) = [each for each in said["results"] if each["probe"] == "subscriber gen"]
    assert (found["level"], found["text"]) == ("warn", "hello is said 2 times")


def test_its_route_and_its_subscriber_are_part_of_a_server(environment: dict[str, str], tmp_path: Path) -> None:
    options = [*QUIET, "--gen-word", "hello"]
    with ServerProcess(options, tmp_path / "log", environment={"PYTHONPATH": environment["PYTHONPATH"]}) as server:
        server.status()  # returns when HTTP is up
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/gen", timeout=10) as answer:
            assert json.loads(answer.read()) == {"word": "hello"}
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/config", timeout=10) as answer:
            assert '"gen_word"' in answer.read().decode()


def test_a_server_and_its_engines_work_in_its_memory(environment: dict[str, str], tmp_path: Path) -> None:
    options = [*QUIET, "--chunk-size", str(CHUNK_TOKENS), "--gen-memory", "mapped"]
    with ServerProcess(options, tmp_path / "log", environment={"PYTHONPATH": environment["PYTHONPATH"]}) as server:
        l1 = server.status()["l1"]
        assert (l1["kind"], l1["segment"]) == ("mapped", None)
        prompt = list(range(4 * CHUNK_TOKENS))
        with FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine:
            assert take(engine, prompt, "before") == 0
            assert engine.store(prompt, "store")
            assert take(engine, prompt, "after") == 4
        assert server.status()["l1"]["state_counts_add_up"]
        assert server.stop() == 0
