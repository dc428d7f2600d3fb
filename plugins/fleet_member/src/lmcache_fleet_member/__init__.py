"""Makes a server a member of a fleet."""

__version__ = "0.1.0"
