"""Where the answer of a command goes; on a terminal it is drawn."""

from __future__ import annotations

import argparse
from typing import TextIO

from lmcache_core.app.console.command_output import CommandOutput
from lmcache_core.app.console.page import Page


def output_of(given: argparse.Namespace) -> CommandOutput:
    """By the flags of `add_output_flags`."""
    return CommandOutput.of(given, _draw)


def _draw(page: Page, stream: TextIO) -> None:
    from lmcache_tools.terminal_page import draw_page  # rich is only paid for where it shows

    draw_page(page, stream)
