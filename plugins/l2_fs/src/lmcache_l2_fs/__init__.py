"""The `fs` L2 adapter: each object a file."""

__version__ = "0.1.0"
