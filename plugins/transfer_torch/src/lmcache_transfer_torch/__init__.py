"""The server moves the bytes between an engine's paged KV cache and L1."""

__version__ = "0.1.0"
