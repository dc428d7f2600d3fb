"""A bar where there is a terminal, and nothing elsewhere."""

from __future__ import annotations

from io import StringIO

import pytest

from lmcache_tools.progress_bar import progress_bar


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_shown"), [(Terminal(), True), (StringIO(), False)])
def test_steps_are_named_and_counted_on_a_terminal(
    stream: StringIO, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bar(3) as progress:
        for text in ("the [first] one", "the second", "the third"):
            progress(text)
    shown = stream.getvalue()
    assert ("the third" in shown) is is_shown
    assert ("2/3" in shown) is is_shown
    if not is_shown:
        assert shown == ""
