"""Objects of the KV-cache server through NIXL: files, object stores."""

__version__ = "0.1.0"
