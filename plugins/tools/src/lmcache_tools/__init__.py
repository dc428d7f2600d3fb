"""Commands for operators: what a server is doing, what a machine can do, and what to change."""

__version__ = "0.1.0"
