"""Log lines without the secrets of the configuration, whichever library's error message they got into."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lmcache_core.app.masking import Hidden


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
