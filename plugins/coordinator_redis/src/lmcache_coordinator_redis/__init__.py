"""State of a coordinator in Redis."""

__version__ = "0.1.0"
