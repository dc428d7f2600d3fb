"""Compression, quantization and encryption of stored KV-cache objects."""

__version__ = "0.1.0"
