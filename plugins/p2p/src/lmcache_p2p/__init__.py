"""Servers of a fleet read chunks out of each other's memory."""

__version__ = "0.1.0"
