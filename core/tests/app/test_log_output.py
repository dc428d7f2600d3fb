"""Log lines: one record each, whatever a message says."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.app.log_output import JsonLines, TextLines, log_to_stderr

HOSTILE = 'salt\n2026-01-01 00:00:00,000 ERROR lmcache_core: forged\r\x1b[31m\x00"}{\u2028\ud800'
TEXT = TextLines("%(levelname)s %(name)s: %(message)s")


def of(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "lmcache", "levelname": "INFO", "msg": message, "args": arguments, **more})


def raised(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return of("it failed", exc_info=sys.exc_info())


@given(st.text(st.characters()))
def test_a_json_line_is_one_line_and_says_the_message(message: str) -> None:
    line = JsonLines().format(of("salt=%s", message))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"salt={message}"


@given(st.text(st.characters()))
def test_a_text_line_is_one_line(message: str) -> None:
    line = TEXT.format(of("salt=%s", message))
    assert len(line.splitlines()) == 1
    assert line.startswith("INFO lmcache: salt=")
    assert line.encode()  # no lone surrogates


def test_what_is_printable_stays_as_it_is() -> None:
    assert TEXT.format(of("model=%s", "Größe 模型")) == "INFO lmcache: model=Größe 模型"


def test_hostile_names_forge_nothing() -> None:
    assert not re.search(r"^2026", TEXT.format(of("salt=%s", HOSTILE)), re.MULTILINE)
    assert json.loads(JsonLines().format(of("salt=%s", HOSTILE)))["message"] == f"salt={HOSTILE}"


def test_a_json_line_says_when_where_and_who() -> None:
    line = json.loads(JsonLines().format(of("hello", created=1700000000.0, msecs=25.0, threadName="router")))
    assert line == {
        "ts": "2023-11-14T22:13:20.025Z",
        "level": "INFO",
        "logger": "lmcache",
        "message": "hello",
        "thread": "router",
    }


def test_a_traceback_is_part_of_its_record() -> None:
    line = json.loads(JsonLines().format(raised(HOSTILE)))
    assert "Traceback" in line["exception"]
    assert "forged" in line["exception"]
    text = TEXT.format(raised(HOSTILE)).split("\n")
    assert text[0] == "INFO lmcache: it failed"
    assert all(each.startswith("  ") for each in text[1:])
    assert len(text) > 3


def test_what_came_with_extra_is_kept_apart() -> None:
    line = json.loads(JsonLines().format(of("hello", level="fake", chunks=5, thing=object)))
    assert (line["level"], line["fields"]["level"], line["fields"]["chunks"]) == ("INFO", "fake", 5)


def test_whatever_came_with_extra_the_record_is_written() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("planted")

    circle: list[object] = []
    circle.append(circle)
    line = JsonLines().format(of("hello", nan=float("nan"), circle=circle, silent=Silent(), chunks=5))
    fields = json.loads(line, parse_constant=pytest.fail)["fields"]
    assert fields == {"nan": "?", "circle": "?", "silent": "?", "chunks": 5}


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_the_style_is_chosen(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("INFO", "json")
    logging.getLogger("lmcache").info("hello %d", 5)
    log_to_stderr("INFO", "text")
    logging.getLogger("lmcache").info("hello again")
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == "hello 5"
    assert second.endswith("INFO lmcache: hello again")
