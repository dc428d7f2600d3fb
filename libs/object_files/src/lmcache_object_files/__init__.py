"""A directory of objects, one file each: what adapters that keep files share.

    files = open_object_files(settings, context)          # owned, and learned in the background
    pending = files.admit(key, buffer.length)             # or the outcome, where nothing is to be written
    with pending:
        write(pending.path, buffer.view)                  # the adapter's own way of moving bytes
        return pending.publish()

Whatever one of them wrote, any other reads: names, format, lock and temporaries are the same.
"""

from lmcache_object_files.async_file_adapter import AsyncFileAdapter
from lmcache_object_files.direct_io import DIRECT_ALIGN, accepts_direct
from lmcache_object_files.file_check import FileCheck, check_file
from lmcache_object_files.file_names import FoundFile
from lmcache_object_files.file_settings import FileSettings
from lmcache_object_files.object_directory import DirectoryLock, ObjectDirectory
from lmcache_object_files.object_files import FileCounts, ObjectFiles
from lmcache_object_files.object_index import FileVersion, ObjectIndex, PendingFile
from lmcache_object_files.opening import open_object_files, unusable
from lmcache_object_files.placed_file import PlacedFile
from lmcache_object_files.recovery import Recovery

__version__ = "0.1.0"

__all__ = [
    "DIRECT_ALIGN",
    "AsyncFileAdapter",
    "DirectoryLock",
    "FileCheck",
    "FileCounts",
    "FileSettings",
    "FileVersion",
    "FoundFile",
    "ObjectDirectory",
    "ObjectFiles",
    "ObjectIndex",
    "PendingFile",
    "PlacedFile",
    "Recovery",
    "accepts_direct",
    "check_file",
    "open_object_files",
    "unusable",
]
