"""Sidecar programs: processes that run beside the server for as long as it does."""

__version__ = "0.1.0"
