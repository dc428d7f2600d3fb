"""A bar on a terminal for what is done step by step and takes minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, if that is a terminal, which is gone when it is over.  What it yields is called with a text
    whenever a step begins.  One thread."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console  # only what takes long pays for it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=steps)
        started = 0

        def begin(text: str) -> None:
            nonlocal started
            progress.update(task, completed=started, description=text)
            started += 1

        yield begin
