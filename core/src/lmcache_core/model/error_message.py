"""What an exception says, although a plugin's own may fail at saying it."""

from __future__ import annotations


def error_message(error: BaseException) -> str:
    """As `str` of it.  Never raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the __str__ of a plugin's exception is plugin code, too
        return "(its message cannot be had)"
