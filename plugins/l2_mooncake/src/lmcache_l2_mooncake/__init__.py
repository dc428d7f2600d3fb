"""Objects of the KV-cache server in a Mooncake Store."""

__version__ = "0.1.0"
