"""KV-cache servers of a fleet read chunks out of each other's memory by NIXL."""

__version__ = "0.1.0"
