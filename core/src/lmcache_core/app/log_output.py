"""Log lines on standard error: text for people, or one JSON object each for programs.

A line that begins at the left edge is a record, in both styles: names that engines send can hold line breaks and control
characters, and none of them reaches a terminal or a log collector as it is.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import Any, Final, Literal

from lmcache_core.app.masking import Hidden

LogStyle = Literal["text", "json"]
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LIBRARIES: Final = ("asyncio", "litestar", "stevedore", "uvicorn")
"""Their debug and info lines would drown ours."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; all else came with `extra`."""


def log_to_stderr(level: str, style: LogStyle = "text") -> None:
    """Records from `level` on; libraries from WARNING on.  Replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))


class TextLines(logging.Formatter):
    """One line, and the lines of a traceback below it, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = _printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - the name is logging's
        return _indented(super().formatStack(stack_info))


class JsonLines(logging.Formatter):
    """`ts` (UTC), `level`, `logger`, `message` and `thread`; `exception` and `stack` where there are any; and under
    `fields` what came with `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        if extra := {name: _fitting(value) for name, value in vars(record).items() if name not in _OWN_FIELDS}:
            line["fields"] = extra
        return json.dumps(line, default=str, skipkeys=True)


def _fitting(value: Any) -> Any:
    """What came with `extra` may be anything: not a number, a circle, or without a text of its own."""
    try:
        json.dumps(value, default=str, skipkeys=True, allow_nan=False)
    except Exception:  # noqa: BLE001 - an object of other code
        return "?"
    return value


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(f"  {_printable(line)}" for line in text.split("\n"))


class MaskingFormatter(logging.Formatter):
    """What another formatter writes, tracebacks included, with known secrets taken out."""

    def __init__(self, inner: logging.Formatter, hidden: Hidden) -> None:
        super().__init__()
        self._inner, self._hidden = inner, hidden

    def format(self, record: logging.LogRecord) -> str:
        return self._hidden.text(self._inner.format(record))


def hide_in_logs(hidden: Hidden, handlers: Iterable[logging.Handler]) -> None:
    """From now on, whatever `hidden` knows or will come to know."""
    for handler in handlers:
        handler.setFormatter(MaskingFormatter(handler.formatter or logging.Formatter(), hidden))
