"""What takes long says so, on a terminal."""

from __future__ import annotations

import io
import threading
import time

import pytest

from lmcache_tools import waiting as module
from lmcache_tools.waiting import waiting


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "asking a server" in text:
            self.written.set()
        return super().write(text)


def test_something_slow_says_so_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    before = threading.active_count()
    with waiting("asking a server [bold]"):
        assert terminal.written.wait(10)
    assert "[bold]" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")  # the line is gone
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_something_fast_and_something_in_a_pipe_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with waiting("asking a server"):
        pass
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    with waiting("asking a server"):
        time.sleep(0.05)
    assert terminal.getvalue() == pipe.getvalue() == ""
