"""Events of types that were not subscribed to by name."""

from __future__ import annotations

from collections.abc import Container

from lmcache_core import Event


def nearest_type(kind: type[Event], known: Container[type[Event]]) -> type[Event]:
    """The known type that this one is a special case of: a plugin may make one of core's events."""
    return next(each for each in kind.__mro__ if each in known)
