"""A directory of objects, one file each: what adapters that keep files share.

    files = open_object_files(settings, context)          # owned, and learned in the background
    pending = files.admit(key, buffer.length)             # or the outcome, where nothing is to be written
    with pending:
        write(pending.path, buffer.view)                  # the adapter's own way of moving bytes
        return pending.publish()

Whatever one of them wrote, any other reads: names, format, lock and temporaries are the same.

Names are imported when they are first used, so that an adapter on threads does not import asyncio.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
