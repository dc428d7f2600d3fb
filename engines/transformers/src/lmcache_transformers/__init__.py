"""A prefix cache for models of Hugging Face transformers.

with PrefixCache(model) as cache:
    answer = cache.generate(input_ids, max_new_tokens=32)
"""

from lmcache_transformers.prefix_cache import PrefixCache

__version__ = "0.1.0"

__all__ = ["PrefixCache"]
