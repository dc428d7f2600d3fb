"""A model with its own prefix cache, by another process and after a kill: `python -m demo.local`."""

from __future__ import annotations

import pytest

from demo import local


@pytest.mark.slow
def test_answers_are_the_same_and_come_sooner(capsys: pytest.CaptureFixture[str]) -> None:
    code = local.main()
    assert code == 0, capsys.readouterr().out
