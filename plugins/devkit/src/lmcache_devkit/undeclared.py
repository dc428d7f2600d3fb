"""A warning for authors who promise less than they deliver."""

from __future__ import annotations


class UndeclaredCapability(UserWarning):
    """An adapter passed the small probe of a capability that its offer does not declare.

    A probe is not a proof: declare the capability and let all of its checks run, or leave it if it works by chance only."""
