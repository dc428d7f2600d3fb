"""Learns in the background what a directory holds, while its adapter serves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count, islice, repeat
from typing import Final, NamedTuple

from lmcache_core import AdapterContext, media_path
from lmcache_object_files.file_check import check_file
from lmcache_object_files.file_names import DIRECTORY_LEVELS, FoundFile
from lmcache_object_files.file_walk import found_file
from lmcache_object_files.object_directory import ObjectDirectory, remove_temporaries
from lmcache_object_files.object_index import ObjectIndex

STEP_FILES: Final = 256
"""Files that are looked at between two rests: about a millisecond."""
READ_AHEAD_ENTRIES: Final = 8192
"""Entries that are read before the first of their files is looked at, so that these can be taken as they lie on the disk."""
REST_RATIO: Final = 0.25
"""Length of a pause for each second of processor time of the walk: requests have the interpreter meanwhile.  Waiting for
the disk does not count; the walk has one request to it at a time."""
RETRY_SECONDS: Final = (1.0, 4.0, 16.0, 60.0)
"""Pauses before what could not be read is tried again; the last one again and again."""
STOP_SECONDS: Final = 5.0
"""A disk that hangs may hold the walk for longer; it is left behind then, and changes nothing any more."""


class _Place(NamedTuple):
    """A directory: its path below the root, with a slash at its end, and how deep it is."""

    path: str
    level: int


_ROOT: Final = _Place("", 0)


class Recovery:
    """One walk through a directory that was just opened.  It adopts by name and length, reads no more than one header for each
    directory, touches nothing but temporaries of servers that have gone, and ends with `index.finish`."""

    def __init__(
        self, directory: ObjectDirectory, index: ObjectIndex, foreign: Callable[[int], None], context: AdapterContext
    ) -> None:
        """`foreign` is called with the number of files that are not ours."""
        self._directory = directory
        self._index = index
        self._foreign = foreign
        self._context = context
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"l2-{context.name}-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, wherever it is.  Also where it was never started."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def steps(self) -> Iterator[float]:
        """The work itself; each value is how many seconds to rest before the next step."""
        pauses = chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))
        places = [_ROOT]
        for attempt in count():
            unread: list[_Place] = []
            yield from self._visit(places, unread)
            if attempt >= len(RETRY_SECONDS):  # a folder that cannot be read after all retries is left out
                unread = [place for place in unread if place == _ROOT]
            if not unread:
                break
            yield next(pauses)
            places = unread
        self._index.finish()
        yield 0.0
        yield from self._clear_left_behind()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            for rest in self.steps():
                if self._stop.wait(rest):
                    return
        except Exception:  # a thread's top: the adapter serves without, and looks at files instead of the index
            self._context.logger.exception("l2 recovery ended by a fault adapter=%s", self._context.name)
            return
        self._context.logger.info(
            "l2 directory known adapter=%s objects=%d bytes=%d seconds=%.1f",
            self._context.name, len(self._index), self._index.room.used_bytes, time.monotonic() - started,
        )  # fmt: skip

    def _visit(self, places: list[_Place], unread: list[_Place]) -> Iterator[float]:
        """All of these and what is below them; those that could not be read go to `unread`."""
        used = time.thread_time()
        while places:
            place = places.pop()
            try:
                for _ in self._read(place, places):
                    before, used = used, time.thread_time()
                    yield (used - before) * REST_RATIO
            except OSError as error:
                if place == _ROOT or not self._directory.is_ours:  # a mount may have gone, and all else with it
                    places.clear()
                    self._put_off(_ROOT, error, unread)
                elif isinstance(error, PermissionError):  # nothing in it can be served either
                    self._say("directory left out, its objects are not known", place, error)
                elif not isinstance(error, FileNotFoundError):
                    self._put_off(place, error, unread)

    def _put_off(self, place: _Place, error: OSError, unread: list[_Place]) -> None:
        self._say("directory cannot be read now, it is tried again", place, error)
        unread.append(place)

    def _say(self, what: str, place: _Place, error: OSError) -> None:
        self._context.logger.warning(
            "%s adapter=%s directory=%r error=%s", what, self._context.name, self._full(place.path), error.strerror
        )

    def _read(self, place: _Place, places: list[_Place]) -> Iterator[None]:
        """What is not ours is counted when the whole directory was read, or another attempt would count it twice."""
        if place == _ROOT:
            self._directory.require()
        with _open_directory(self._full(place.path)) as fd, os.scandir(fd) as entries:
            if place.level == len(DIRECTORY_LEVELS):
                foreign = yield from self._adopt_files(place, entries)
            else:
                foreign = self._find_directories(place, entries, places)
        if foreign:
            self._foreign(foreign)
        yield

    def _find_directories(self, place: _Place, entries: Iterator[os.DirEntry[str]], places: list[_Place]) -> int:
        skipped = self._directory.own_names if place == _ROOT else ()
        name_rule = DIRECTORY_LEVELS[place.level]
        foreign, below = 0, []
        for entry in entries:
            if entry.name in skipped:
                continue
            if name_rule.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                below.append(_Place(f"{place.path}{entry.name}/", place.level + 1))
            else:
                foreign += 1
        places.extend(below)  # only now: where the reading ends in an error, it begins anew
        return foreign

    def _adopt_files(self, place: _Place, entries: Iterator[os.DirEntry[str]]) -> Generator[None, None, int]:
        """Returns how many are not ours.  Raises OSError where a file cannot be looked at, when all others are known."""
        foreign = 0
        fan_out = place.path[-3:-1]
        is_home: bool | None = None
        unread: OSError | None = None
        while ahead := sorted(islice(entries, READ_AHEAD_ENTRIES), key=os.DirEntry.inode):
            for start in range(0, len(ahead), STEP_FILES):
                step = ahead[start : start + STEP_FILES]
                found = []
                for entry in step:
                    try:
                        file = found_file(entry, f"{place.path}{entry.name}", fan_out)
                    except OSError as error:  # of this one alone: what else is in its directory counts all the same
                        unread = unread or error
                    else:
                        found += [file] if file else []
                ours = [file for file in found if file.object_id is not None]
                if is_home is None and ours:
                    is_home = self._belongs_here(ours[0])
                if (
                    is_home is False
                ):  # a copy of a directory, or one with another name: none of it can be found by a key
                    ours = [file for file in ours if self._belongs_here(file)]
                foreign += len(found) - len(ours) + self._adopt(ours)
                yield
        if unread is not None:
            raise unread
        return foreign

    def _adopt(self, files: Sequence[FoundFile]) -> int:
        """Returns how many of them have a name that is in another directory, too."""
        known = self._index.adopt([(file.object_id, file.size) for file in files if file.object_id is not None])
        twice = frozenset(known)
        return sum(1 for file in files if file.object_id in twice and not self._belongs_here(file)) if twice else 0

    def _belongs_here(self, file: FoundFile) -> bool:
        """Is this the place of the object that its header names?  A file that does not say is taken at its name."""
        try:
            key = check_file(self._full(file.path)).key
        except OSError:
            return True
        return key is None or media_path(key) == file.path

    def _clear_left_behind(self) -> Iterator[float]:
        """Temporaries of crashed writers.  What cannot be removed now is tried again by the next server."""
        removed = 0
        try:
            for folder in self._directory.left_behind():
                if self._stop.is_set():  # the directory may have another owner by now, and this folder may be in use
                    return
                removed += remove_temporaries(folder)
                yield 0.0
        except OSError as error:
            self._context.logger.warning(
                "unfinished files left for now adapter=%s error=%s", self._context.name, error.strerror
            )
        if removed:
            self._context.logger.info("unfinished files removed adapter=%s files=%d", self._context.name, removed)

    def _full(self, path: str) -> str:
        return f"{self._directory.root}/{path}"


@contextmanager
def _open_directory(path: str) -> Iterator[int]:
    """A descriptor, so that its files are looked at without going through the whole path each time."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
