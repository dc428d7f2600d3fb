"""The coordinator of a fleet: `lmcache coordinator`."""

__version__ = "0.1.0"
