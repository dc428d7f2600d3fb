"""NIXL, one agent on a thread of its own: files, object stores, and the memory of other processes."""

__version__ = "0.1.0"
