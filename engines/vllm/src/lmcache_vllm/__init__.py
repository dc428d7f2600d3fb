"""A connector between vLLM and the KV-cache server of its node."""

__version__ = "0.1.0"
