"""How blocking functions are called from an adapter's loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


class InThread(Protocol):
    """`AsyncL2Adapter.in_thread`."""

    def __call__(
        self, function: Callable[Parameters, Value], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Awaitable[Value]: ...
