"""What `lmcache doctor` says of the coordinators that a server is to join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmcache_core.app.cli import main
from lmcache_fleet_member.doctor import check
from lmcache_fleet_member.settings import MemberSettings
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess, free_port


def test_a_coordinator_with_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-the-test\n")
    tokens.chmod(0o600)
    with CoordinatorProcess(tmp_path, "--token-file", str(tokens)) as coordinator:
        (result, l2) = check(MemberSettings.model_validate({"urls": [coordinator.url], "token_file": str(tokens)}))
        assert result == ("ok", f"{coordinator.url} answers; 0 servers are registered there", "")
        assert "--coordinator-l2-event-reporting" in l2.text
        (result,) = check(MemberSettings.model_validate({"urls": [coordinator.url], "l2_event_reporting": True}))
        assert (result.level, "does not take the token" in result.text) == ("fail", True)
        # by way of the command
        main(["doctor", "--coordinator-url", coordinator.url, "--json"])
        shown = json.dumps(json.loads(capsys.readouterr().out))
        assert f"{coordinator.url} does not take the token" in shown


def test_one_that_is_away_is_a_warning() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (result,) = check(MemberSettings.model_validate({"urls": [url], "l2_event_reporting": True}))
    assert result.level == "warn"
    assert url in result.remedy
