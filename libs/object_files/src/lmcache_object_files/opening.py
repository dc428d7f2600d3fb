"""Opens a directory of objects, or says in one line why it is not available."""

from __future__ import annotations

import errno
from pathlib import Path

from lmcache_core import AdapterContext, ResourceError
from lmcache_object_files.file_check import is_full
from lmcache_object_files.file_settings import FileSettings
from lmcache_object_files.object_directory import DirectoryLock, ObjectDirectory
from lmcache_object_files.object_files import ObjectFiles
from lmcache_object_files.object_index import ObjectIndex


def open_object_files(settings: FileSettings, context: AdapterContext) -> ObjectFiles:
    """Take the directory; a thread of its own learns what is there, so that this takes no longer with a million files.  The
    caller closes it.  Raises ResourceError when the directory is not available."""
    root = settings.base_path.absolute()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock.take(root, context)
    except OSError as error:
        raise unusable(root, error, context) from None
    try:
        directory = ObjectDirectory(lock, settings.relative_tmp_dir, context)
        files = ObjectFiles(
            directory, lock, ObjectIndex(settings.capacity_bytes), context,
            durable=settings.fsync, keep=settings.persist_enabled,
        )  # fmt: skip
        files.start()
    except OSError as error:
        lock.release()
        raise unusable(root, error, context) from None
    except BaseException:
        lock.release()
        raise
    return files


def unusable(root: Path, error: OSError, context: AdapterContext) -> ResourceError:
    """What to raise where a directory cannot be opened."""
    where = f"{context.name}: base_path '{root}'"
    if error.errno == errno.EXDEV:
        return ResourceError(f"{where}: relative_tmp_dir is on another file system; choose one on the same")
    if is_full(error):
        return ResourceError(
            f"{where} cannot be used, there is no room for its lock or its temporaries ({error.strerror}); "
            "free some space, or name another"
        )
    return ResourceError(
        f"{where} cannot be used ({error.strerror}: '{error.filename or root}'); "
        "name one that this server may create and write to, where there are hard links"
    )
