"""Objects of the KV-cache server in a store that speaks the lm:// protocol, and such a store."""

__version__ = "0.1.0"
