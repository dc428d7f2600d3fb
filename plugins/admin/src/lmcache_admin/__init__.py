"""The HTTP API for operators."""

__version__ = "0.1.0"
