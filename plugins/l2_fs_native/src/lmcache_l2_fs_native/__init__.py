"""The `fs_native` L2 adapter: each object a file, moved by compiled threads or io_uring."""

__version__ = "0.1.0"
