"""`lmcache quota` and `lmcache clear`, against an API with stand-ins behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_admin.service import AdminService
from lmcache_core.app.cli import main
from plugins.admin.tests.conversation import running
from plugins.admin.tests.stand_ins import StandInCache, StandInQuotas

GIB = 2**30
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def quotas() -> StandInQuotas:
    return StandInQuotas()


@pytest.fixture
def api(quotas: StandInQuotas) -> Iterator[AdminService]:
    with running(quotas=quotas) as server:
        yield server


def test_set_get_list_and_delete(api: AdminService, quotas: StandInQuotas, capsys: Captured) -> None:
    url = ("--url", api.http.endpoint)
    assert main(["quota", "set", "tenant a%1", "--limit-gb", "2.5", *url]) == 0
    assert capsys.readouterr().out == "'tenant a%1' may use 2.5 GiB of L1\n"
    assert quotas.limits == {"tenant a%1": 5 * GIB // 2}
    quotas.used = {"tenant a%1": GIB // 4, "": 4096}
    assert main(["quota", "list", *url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "SALT        LIMIT GIB  USED GIB  USED BYTES",
        "_default    -          0.000004  4096",
        "tenant a%1  2.5        0.25      268435456",
    ]
    assert main(["quota", "get", "_default", *url]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["_default  -          0.000004  4096"]
    assert main(["quota", "delete", "tenant a%1", *url]) == 0
    assert capsys.readouterr().out == "'tenant a%1' has no quota of its own any more\n"
    assert main(["quota", "delete", "tenant a%1", *url]) == 1
    assert capsys.readouterr().err == (
        f"lmcache: {api.http.endpoint} answers 404 Not Found: cache salt 'tenant a%1' has no quota of its own; "
        "GET /quota lists those that do\n"
    )


def test_the_default_quota_is_shown_where_there_is_one(
    api: AdminService, quotas: StandInQuotas, capsys: Captured
) -> None:
    quotas.default_bytes = GIB // 2
    assert main(["quota", "list", "--url", api.http.endpoint]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "salts without a quota of their own: 0.5 GiB each"


def test_json_is_the_answer_as_it_is(api: AdminService, quotas: StandInQuotas, capsys: Captured) -> None:
    assert main(["quota", "set", "_default", "--limit-gb", "0", "--json", "--url", api.http.endpoint]) == 0
    assert json.loads(capsys.readouterr().out) == {"cache_salt": "_default", "limit_gb": 0, "status": "ok"}
    assert quotas.limits == {"": 0}


def test_names_that_others_chose_cannot_write_to_the_terminal(
    api: AdminService, quotas: StandInQuotas, capsys: Captured
) -> None:
    quotas.used = {"\x1b[2Jgone": 1}
    assert main(["quota", "list", "--url", api.http.endpoint]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("\\x1b[2Jgone")


def test_a_server_that_can_keep_no_quota_says_what_to_do(
    api: AdminService, quotas: StandInQuotas, capsys: Captured
) -> None:
    quotas.refusal = "start the server with --eviction-policy IsolatedLRU"
    assert main(["quota", "set", "a", "--limit-gb", "1", "--url", api.http.endpoint]) == 1
    assert capsys.readouterr().err == f"lmcache: {api.http.endpoint} answers 409 Conflict: {quotas.refusal}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["quota", "sett", "a"], "no command is called 'quota sett'; did you mean 'quota set'?"),
        (["quota", "set", "a"], "the following arguments are required: --limit-gb"),
        (["quota", "set", "--limit-gb", "1"], "the following arguments are required: SALT"),
        (["quota", "set", "a", "--limit-gb", "x"], "--limit-gb: invalid float value: 'x'"),
        (["quota", "set", "a", "--limit-gb", "-1"], "--limit-gb -1: expected a number of GiB from 0 to 1073741824"),
        (["quota", "set", "a", "--limit-gb", "nan"], "--limit-gb nan: expected a number of GiB from 0 to 1073741824"),
        (
            ["quota", "set", "a@b", "--limit-gb", "1"],
            "SALT 'a@b': a cache salt holds none of @ / \\ and NUL, this one '@'",
        ),
        (["quota", "get", ""], "SALT '': the empty salt is written _default"),
        (["quota", "get", "x" * 129], "a cache salt has at most 128 characters, this one 129"),
        (["quota", "list", "--urll", "x"], "no flag is called --urll; did you mean --url?"),
        (["quota", "list", "--url", "ftp://x"], "--url ftp://x: expected an address such as http://127.0.0.1:8080"),
        (["clear", "--froce"], "no flag is called --froce; did you mean --force?"),
        (["clear", "all"], "'all' is not expected here; see `lmcache clear --help`"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], says: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_help(capsys: Captured) -> None:
    assert main(["quota"]) == 2
    assert main(["quota", "--help"]) == 0
    assert "  set     limit what a cache salt may use of L1\n" in capsys.readouterr().out


def test_clear(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-word\n")
    with running("secret-word", cache=StandInCache(cached=3, held=2)) as server:
        flags = ["--url", server.http.endpoint, "--http-token-file", str(tmp_path / "token")]
        assert main(["clear", *flags]) == 0
        assert capsys.readouterr().out == "dropped 3 objects of L1; 2 are there: in use, or stored since\n"
        assert main(["clear", "--force", *flags]) == 0
        assert capsys.readouterr().out == "dropped 2 objects of L1\n"
        assert main(["clear", "--json", *flags]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "status": "ok",
            "cleared": {"tier": "l1", "objects": 0, "objects_left": 0},
        }
        assert main(["clear", *flags[:2]]) == 1
        assert "answers 401 Unauthorized; give --http-token-file" in capsys.readouterr().err


def test_an_api_that_is_not_ours(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(status=lambda: {"ok": True}) as server:
        monkeypatch.setattr("lmcache_tools.commands.quota_get.salt_path", lambda salt: "/status")
        assert main(["quota", "get", "a", "--url", server.http.endpoint]) == 1
        assert f"{server.http.endpoint} answers, but not as the admin API of a cache server" in capsys.readouterr().err
