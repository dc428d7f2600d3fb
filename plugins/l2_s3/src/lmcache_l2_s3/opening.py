"""Opens the `s3` adapter."""

from __future__ import annotations

from lmcache_core import AdapterContext
from lmcache_l2_s3.adapter import S3Adapter
from lmcache_l2_s3.config import S3Settings


def open_s3(settings: S3Settings, context: AdapterContext) -> S3Adapter:
    """Check the bucket, find out what the store can do, become its owner or its guest, and serve.  Raises ResourceError."""
    return S3Adapter(settings, context)
