"""Policies: what leaves L1 first, what goes to which backend, and where it is loaded from."""

__version__ = "0.1.0"
