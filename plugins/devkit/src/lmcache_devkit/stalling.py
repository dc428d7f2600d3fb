"""Keeps an adapter from getting answers, or gives it errors, for the checks of backends that hang or fail."""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

_LONGEST_SECONDS = 30.0
_LOOK_SECONDS = 0.002
_VERBS = ("store", "load", "contains", "delete")


def _input_output_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


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


def fail_methods(
    monkeypatch: pytest.MonkeyPatch,
    methods: Mapping[type, Sequence[str]],
    error: Callable[[], Exception] = _input_output_error,
) -> Callable[[], AbstractContextManager[None]]:
    """What the fixture `failing` returns: within the context, these methods of these classes raise.  Name those of the client
    below the adapter: what the adapter makes of their errors is what is checked."""
    fails = threading.Event()
    for owner, names in methods.items():
        for name in names:
            monkeypatch.setattr(owner, name, _raising(getattr(owner, name), fails, error))

    @contextmanager
    def failing() -> Iterator[None]:
        fails.set()
        try:
            yield
        finally:
            fails.clear()

    return failing


def _raising(method: Callable[..., Any], fails: threading.Event, error: Callable[[], Exception]) -> Callable[..., Any]:
    @functools.wraps(method)
    def raising(*arguments: Any, **named: Any) -> Any:
        if fails.is_set():
            raise error()
        return method(*arguments, **named)

    return raising


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
