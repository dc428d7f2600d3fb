from collections.abc import Sequence
from typing import Final

IO_ABI: Final[int]

READ: Final[int]
WRITE: Final[int]
READ_FILE: Final[int]
WRITE_FILE: Final[int]
COPY: Final[int]
SYNC: Final[int]

ReadOperation = tuple[int, int, int, int, int, int, int, int]
"""(READ, token, fd, offset, address, length, align, digest_from): bytes of an open file into memory."""
WriteOperation = tuple[int, int, int, int, int, int, int, int, int]
"""(WRITE, token, fd, offset, address, length, align, head_bytes, sync): memory into an open file.  The first `head_bytes` of it
are written only after all the rest was (0: in any order)."""
ReadFileOperation = tuple[int, int, bytes, int, int, int, int, int]
"""(READ_FILE, token, path, address, length, align, digest_from, read_ahead_bytes): a whole file, which must be a plain one of
exactly `length` bytes, into memory."""
WriteFileOperation = tuple[int, int, bytes, bytes, int, int, int, int]
"""(WRITE_FILE, token, temporary, path, address, length, align, sync): memory into a new file `temporary`, which then gets the
name `path`, never over something that is there, and loses its own, whatever comes of it."""
CopyOperation = tuple[int, int, int, int, int, int, int]
"""(COPY, token, source, target, length, head_bytes, digest_from): memory to memory.  The first `head_bytes` come after all the
rest.  A page of either that vanishes (SIGBUS) is -EFAULT."""
SyncOperation = tuple[int, int, int]
"""(SYNC, token, fd): fdatasync."""

Operation = ReadOperation | WriteOperation | ReadFileOperation | WriteFileOperation | CopyOperation | SyncOperation

Answer = tuple[int, int, bytes | None]
"""(token, result, digest).  The result is the number of bytes that were moved, or -errno: -ENODATA where a file has another
length than was asked for or ends early, -ELOOP where the name belongs to something else than a plain file."""

class IoEngine:
    """Moves bytes between memory and files, devices or other memory, many operations at a time, on threads of its own that
    never need the interpreter.

    Memory that an operation names must stay valid until its answer came; so must its descriptor.  `align` is 0 for buffered
    I/O; otherwise the descriptor is (or the file is to be) opened with O_DIRECT, and address, offset and length that are not
    multiples of it go through a bounce buffer, are counted, and come out right all the same.  `digest_from` is where in the
    buffer the xxh3-128 begins that is computed while the bytes pass, and answered in canonical form; -1: none.  `sync` 0:
    nothing; 1: data (and for files the entry in the directory) are on the medium before the answer; 2: and with
    `head_bytes`, the rest before the head is written.

    More than `queue_depth` operations or `bytes_in_flight` bytes at a time wait in the engine, in the order they came;
    nothing is refused for that.  Any thread may call anything; one at a time calls `answers`.  A process that was forked
    off may not use it (RuntimeError).  One that is collected waits for what is under way."""

    def __init__(self, kind: str, workers: int, queue_depth: int, bytes_in_flight: int) -> None:
        """`kind`: "threads", "io_uring", or "auto" for io_uring where this kernel and build have it.  `workers` threads move
        bytes (of io_uring: open, link and copy).  Raises ValueError for what cannot be, OSError where io_uring was asked for
        and is not available."""

    @property
    def kind(self) -> str:
        """The engine that works: "threads" or "io_uring"."""
    @staticmethod
    def has_io_uring() -> bool:
        """Was it built in, and does this kernel let us?"""
    def fileno(self) -> int:
        """An eventfd that polls readable while answers wait."""
    def register_memory(self, address: int, length: int) -> bool:
        """Use this memory (L1's region) without pinning it anew for each operation.  False where the kernel refuses (a limit on
        locked memory); operations in it work all the same.  The pages are pinned, and so allocated, until `close`; the memory
        must stay mapped as long."""
    def register_file(self, fd: int) -> bool:
        """The same for an open file that many operations use.  It must stay open until `close`."""
    def submit(self, operations: Sequence[Operation]) -> None:
        """Take them all, with one system call where io_uring has room.  Raises, and takes none, where one is malformed
        (TypeError, ValueError) or after `close` (RuntimeError)."""
    def answers(self) -> list[Answer]:
        """Everything that is answered and was not fetched; clears the eventfd.  Each operation is answered once."""
    def counters(self) -> dict[str, int]:
        """`operations`, `bytes_read`, `bytes_written`, `bounced` (operations that were misaligned), `errors`, `in_flight`,
        `waiting`, `registered_bytes`."""
    def close(self, seconds: float) -> bool:
        """Take nothing more, answer what waits with -ECANCELED, and wait for what is under way.  True once nothing touches
        memory any more and the threads are gone; False when that takes longer (call it again).  Answers can still be
        fetched."""
