"""Keeps an adapter from getting answers, for the laws about backends that hang."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

_LONGEST_SECONDS = 30.0
_LOOK_SECONDS = 0.002
_VERBS = ("store", "load", "contains", "delete")


def stall_methods(
    monkeypatch: pytest.MonkeyPatch, owner: type, verbs: Sequence[str] = _VERBS
) -> Callable[[], AbstractContextManager[None]]:
    """What the fixture `stalled` returns: within the context, these methods of the class wait before they begin, those that
    are coroutines without holding up their loop.  By default they are what the author of an adapter wrote."""
    go_on = threading.Event()
    go_on.set()
    for verb in verbs:
        method = getattr(owner, verb)
        monkeypatch.setattr(
            owner, verb, (_awaiting if inspect.iscoroutinefunction(method) else _waiting)(method, go_on)
        )

    @contextmanager
    def stalled() -> Iterator[None]:
        go_on.clear()
        try:
            yield
        finally:
            go_on.set()

    return stalled


def _waiting(method: Callable[..., Any], go_on: threading.Event) -> Callable[..., Any]:
    def waiting(self: object, *arguments: Any) -> Any:
        go_on.wait(_LONGEST_SECONDS)
        return method(self, *arguments)

    return waiting


def _awaiting(method: Callable[..., Any], go_on: threading.Event) -> Callable[..., Any]:
    async def waiting(self: object, *arguments: Any) -> Any:
        while not go_on.is_set():
            await asyncio.sleep(_LOOK_SECONDS)
        return await method(self, *arguments)

    return waiting
