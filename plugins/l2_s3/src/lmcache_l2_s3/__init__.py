"""Objects of the KV-cache server in S3-compatible object stores."""

__version__ = "0.1.0"
