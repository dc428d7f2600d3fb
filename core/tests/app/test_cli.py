"""The command as a user meets it: one line on standard error, and an exit code that means something."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lmcache_core
from demo.server_process import preloaded
from lmcache_devkit import free_port
from plugins.admin.tests.conversation import running

Install = Callable[..., Path]
Environment = dict[str, str]


def lmcache(environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded().run([sys.executable, "-m", "lmcache_core", *arguments], environment)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["sever"], 2, "lmcache: no command is called 'sever'; did you mean 'server'?"),
        (["server", "--prot", "1"], 2, "lmcache: no flag is called --prot; did you mean --port?"),
        (
            ["server", "--chunk-size", "0"],
            2,
            "lmcache: --chunk-size is '0': input should be greater than or equal to 1",
        ),
        (["server", "--plugin", "xyzzy"], 2, "lmcache: --plugin xyzzy: no plugin is called so; installed: "),
        (["server", "--plugin", "acme"], 4, "lmcache: plugin 'acme' (acme-dist 1.0) is broken: ModuleNotFoundError"),
        (["ping", "--port", "x"], 2, "lmcache: --port: invalid int value: 'x'"),
        (["ping", "--port", "0"], 2, "lmcache: --port must be 1 to 65535"),
        (["plugins", "lst"], 2, "lmcache: no command is called 'plugins lst'; did you mean 'plugins list'?"),
        (["status", "--url", "ftp://x"], 2, "lmcache: --url ftp://x: expected an address"),
        (["status", "--url", "http://[::1"], 2, "lmcache: --url http://[::1: expected an address"),
        (["status", "--url", "http://x:http"], 2, "lmcache: --url http://x:http: expected an address"),
        (["status", "--url", "http://me:hush@x"], 2, "lmcache: --url: leave out what is before the @"),
        (["--json", "status"], 2, "lmcache: --json: give it behind a command: lmcache COMMAND --json"),
    ],
)
def test_what_the_user_can_fix_is_one_line(
    install: Install, child_environment: Environment, arguments: list[str], code: int, says: str
) -> None:
    install("acme", "import no_such_library")
    done = lmcache(child_environment, *arguments)
    assert done.returncode == code
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["version", "help", "plugins list --json"])
def test_who_closes_standard_output_gets_no_traceback(command: str, child_environment: Environment) -> None:
    line = f"exec {sys.executable} -m lmcache_core {command} >&-"
    done = subprocess.run(["sh", "-c", line], env=child_environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_and_help(child_environment: Environment) -> None:
    assert lmcache(child_environment, "version").stdout == f"lmcache-core {lmcache_core.__version__}\n"
    assert lmcache(child_environment, "--version").returncode == 0
    done = lmcache(child_environment, "server", "--help")
    assert done.returncode == 0
    assert "L2 (storage):" in done.stdout
    assert "--eviction-trigger-watermark" in done.stdout
    assert lmcache(child_environment).returncode == 2


@pytest.mark.parametrize("command", ["version", "--help"])
def test_what_few_commands_need_is_not_loaded_by_all(command: str, child_environment: Environment) -> None:
    code = (
        "import sys; from lmcache_core.app.cli import main; main(sys.argv[1:]);"
        "print({name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for library in ("rich", "shtab", "litestar", "zmq", *(["pydantic"] if command == "version" else [])):
        assert f"'{library}'" not in done.stderr


def test_a_taken_admin_port_is_a_resource_that_is_not_available(child_environment: Environment) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = lmcache(child_environment, "server", "--port", "0", "--http-port", port, "--l1-size-gb", "0.05")
    assert done.returncode == 3
    assert f"lmcache: --http-host 127.0.0.1 --http-port {port}: cannot be bound: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_plugin_that_is_needed_is_named_once(install: Install, child_environment: Environment) -> None:
    install("acme", "import no_such_library")
    install("zeta", "import another_library")
    flags = ("server", "--port", "0", "--no-http", "--l1-size-gb", "0.05", "--l2-adapter", '{"type": "acme"}')
    done = lmcache(child_environment, *flags)
    assert done.returncode == 4
    for library in ("no_such_library", "another_library"):
        assert len([line for line in done.stderr.splitlines() if library in line]) == 1
    assert done.stderr.splitlines()[-1].startswith("lmcache: L2 adapter 'acme' is not available: plugin 'acme'")


# lmcache plugins list


def test_the_list_of_plugins_as_a_table(install: Install, child_environment: Environment) -> None:
    install("acme")
    install("broken", "import no_such_library")
    done = lmcache(child_environment, "plugins", "list", "--verbose")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "ORIGIN", "STATUS", "OFFERS"]
    (acme,) = [line for line in lines if line.startswith("acme")]
    assert acme.split() == ["acme", "acme-dist", "1.0", "entry", "point", "available", "l2_adapter:acme"]
    assert "    ModuleNotFoundError: No module named 'no_such_library'" in lines
    assert "    L2 adapter 'acme': for tests" in lines
    assert any(
        line.startswith("    L2 adapter 'memory': ") and "[delete, usage, list, any_length]" in line for line in lines
    )


def test_the_list_of_plugins_as_json(install: Install, child_environment: Environment) -> None:
    install("acme")
    environment = {**child_environment, "LMCACHE_NO_PLUGINS": "acme"}
    records = {each["name"]: each for each in json.loads(lmcache(environment, "plugins", "list", "--json").stdout)}
    assert records["acme"]["status"] == "blocked"
    assert records["acme"]["error"] == "blocked by --no-plugin"
    (memory,) = [each for each in records["builtin"]["offers"] if each["kind"] == "l2_adapter"]
    assert memory["name"] == "memory"
    assert memory["capabilities"] == ["DELETE", "USAGE", "LIST", "ANY_LENGTH"]


def test_a_selected_broken_plugin_is_still_listed(install: Install, child_environment: Environment) -> None:
    install("broken", "import no_such_library")
    done = lmcache(child_environment, "plugins", "list", "--plugin", "broken")
    assert done.returncode == 0
    assert "no_such_library" in done.stdout


# lmcache ping, lmcache status


def test_ping_without_a_server(child_environment: Environment) -> None:
    arguments = ("ping", "--host", "127.0.0.1", "--port", str(free_port()), "--timeout-seconds", "0.2")
    done = lmcache(child_environment, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("lmcache: ")
    assert done.stderr.count("\n") == 1


def test_status_without_a_server(child_environment: Environment) -> None:
    done = lmcache(child_environment, "status", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "does not answer: [Errno 111] Connection refused; is the server running?" in done.stderr


def test_status_of_a_server(child_environment: Environment, tmp_path: Path) -> None:
    def status() -> dict[str, object]:
        return {"l1": {"free": 3, "name": None}, "l2": [{"name": "fs"}, {"name": "memory"}], "workers": []}

    (tmp_path / "token").write_text("secret-word\n")
    with running("secret-word", status=status) as server:
        arguments = ("status", "--url", server.http.endpoint, "--http-token-file", str(tmp_path / "token"))
        done = lmcache({**child_environment, "http_proxy": "http://127.0.0.1:1"}, *arguments, "--full")
        assert [line.split() for line in done.stdout.splitlines()] == [
            ["FIGURE", "VALUE"],
            ["l1.free", "3"],
            ["l1.name", "-"],
            ["l2[0].name", "fs"],
            ["l2[1].name", "memory"],
            ["workers", "-"],
        ]
        assert json.loads(lmcache(child_environment, *arguments, "--json").stdout) == status()
        spoken = lmcache({**child_environment, "LMCACHE_HTTP_TOKEN": "secret-word"}, *arguments[:3])
        assert spoken.returncode == 0
        refused = lmcache(child_environment, "status", "--url", server.http.endpoint)
        assert refused.returncode == 1
        assert "answers 401 Unauthorized; give --http-token-file" in refused.stderr
