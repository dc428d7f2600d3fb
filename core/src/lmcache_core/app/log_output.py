"""Log lines on standard error."""

from __future__ import annotations

import logging
import sys
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LIBRARIES: Final = ("asyncio", "litestar", "stevedore", "uvicorn")
"""Their debug and info lines would drown ours."""


def log_to_stderr(level: str) -> None:
    """One text line per record, from `level` on; libraries from WARNING on.  Replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
