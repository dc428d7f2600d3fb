"""Objects of the KV-cache server in an InfiniStore."""

__version__ = "0.1.0"
