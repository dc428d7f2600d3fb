"""A fault of a plugin: where in its code it is, what its reader can do about it, and calls that it must not end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from traceback import format_exception, walk_tb
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.discovery import Candidate, Origin
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)

_MACHINERY: Final = ("lmcache_core", "lmcache_client", "importlib", "pluggy", "stevedore", "pydantic")
"""Packages whose lines say nothing about a fault of a plugin."""


def place_of(error: BaseException, candidate: Candidate) -> str | None:
    """`file:line` of the innermost line of the plugin's code, or else of what it called; None where neither was reached."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    own: str | None = None
    others: str | None = None
    for frame, line in walk_tb(error.__traceback__):
        package = _package(str(frame.f_globals.get("__name__", "")))
        place = f"{frame.f_code.co_filename}:{line}"
        if package == _package(candidate.module):
            own = place
        elif package not in _MACHINERY and not place.startswith("<"):
            others = place
    return own or others


def whole(error: BaseException) -> str | None:
    """The traceback of the plugin's exception, where one is the reason of this error."""
    return "".join(format_exception(error.__cause__)) if error.__cause__ else None


def repair(candidate: Candidate, error: BaseException, module: ModuleType | None = None) -> str:
    """What to do about a plugin that cannot be loaded."""
    if candidate.origin is Origin.COMMAND_LINE:
        return f"repair it, or leave out --plugin {candidate.name}"
    fix = _fix_for(candidate, error, module) or _replace(candidate, error.__cause__ or error)
    return fix if candidate.origin is Origin.BUILTIN else f"{fix}, or leave it out: --no-plugin {candidate.name}"


def way_around(candidate: Candidate, error: BaseException) -> str:
    """What to do about a plugin that was loaded, and has something that cannot be opened."""
    fix = _fix_for(candidate, error, None) if error.__cause__ else None
    leave = f"leave it out: --no-plugin {candidate.name}"
    return f"{fix}, or {leave}" if fix else f"or {leave}" if isinstance(error, ConfigError) else leave


def reinstall(candidate: Candidate) -> str:
    """What to do about a distribution whose metadata is damaged."""
    return (
        f"pip install --force-reinstall {candidate.distribution or candidate.name}, or remove the folder "
        f"{candidate.module}, or leave it out: --no-plugin {candidate.name}"
    )


def install_again(candidate: Candidate) -> str:
    """The command that brings what a distribution requires."""
    source = local_source(candidate)
    if source is None:
        return f"pip install --upgrade {candidate.distribution}"
    folder, editable = source
    return f"pip install {'-e ' if editable else ''}{folder}"


def local_source(candidate: Candidate) -> tuple[str, bool] | None:
    """The folder that a distribution was installed from, and whether it is used where it lies; None for what came from an
    index, or has no distribution."""
    if candidate.distribution is None:
        return None
    try:
        said = json.loads(distribution(candidate.distribution).read_text("direct_url.json") or "{}")
        url, about = urlsplit(said.get("url", "")), said.get("dir_info")
    except (PackageNotFoundError, OSError, ValueError, AttributeError):  # damaged metadata of a distribution
        return None
    if url.scheme != "file" or not isinstance(about, dict):
        return None
    return unquote(url.path), about.get("editable") is True


def _fix_for(candidate: Candidate, error: BaseException, module: ModuleType | None) -> str | None:
    """For those who have the source: which line of it to look at."""
    source = local_source(candidate)
    if source is None:
        return None
    folder, editable = source
    place = place_of(error.__cause__ or error, candidate) or getattr(module, "__file__", None) or folder
    return f"fix {place}" if editable else f"fix {place} and install {folder} again"


def _replace(candidate: Candidate, error: BaseException) -> str:
    """For those who have not: installing the same files again helps only where some of them are missing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        if _package(error.name) == _package(candidate.module):
            return f"pip install --force-reinstall {candidate.distribution}"
        return f"install the module '{error.name}', which it imports"
    return f"tell its author: the fault is at {place_of(error, candidate) or candidate.module}"


def _package(module: str) -> str:
    return module.partition(".")[0]


def describe(error: BaseException) -> str:
    """The first line of an exception, with its type."""
    lines = [text for line in error_message(error).splitlines() if (text := " ".join(line.split()))]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def close_logged(subject: str, close: Callable[[], None]) -> None:
    """Close what a plugin opened.  What that raises is logged, because others are to be closed after it."""
    try:
        close()
    except (Exception, SystemExit):
        logger.exception("plugin failed to close %s", subject)


def status_of(subject: str, status: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What something that a plugin opened says of itself, or why it fails to: the status of the server has the rest."""
    try:
        return dict(status())
    except (Exception, SystemExit) as error:
        logger.debug("status() failed %s", subject, exc_info=True)
        return {"error": describe(error)}
