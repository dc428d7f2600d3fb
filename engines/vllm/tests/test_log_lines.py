from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from lmcache_vllm.registration import log_where_vllm_does

OWN, ENGINE = logging.getLogger("lmcache_vllm"), logging.getLogger("vllm")


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    before = OWN.handlers[:], OWN.level, OWN.propagate, ENGINE.handlers[:], ENGINE.level
    yield
    OWN.handlers[:], OWN.level, OWN.propagate, ENGINE.handlers[:], ENGINE.level = before


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_lines_are_in_the_engines_log_once() -> None:
    handler = Lines()
    ENGINE.addHandler(handler)
    ENGINE.setLevel(logging.INFO)
    log_where_vllm_does()
    log_where_vllm_does()
    logging.getLogger("lmcache_vllm.transfer_session").info("registered")
    logging.getLogger("lmcache_vllm.transfer_session").debug("not at this level")
    assert handler.lines == ["registered"]


def test_without_the_engine_nothing_changes() -> None:
    ENGINE.handlers.clear()
    log_where_vllm_does()
    assert (OWN.handlers, OWN.propagate) == ([], True)
