"""Settings of the `fs_native` adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from lmcache_object_files import FileSettings


class FsNativeSettings(FileSettings):
    """Where files go, how they are written, how much may be kept, and how hard the engine pushes."""

    read_ahead_size: Annotated[
        int | None,
        Field(
            gt=0,
            description="Bytes that the kernel fetches ahead of a read; none: the kernel decides for files up "
            "to 16 MiB, and fetches all of longer ones. Not with use_odirect.",
        ),
    ] = None
    num_workers: Annotated[
        int,
        Field(
            ge=1,
            le=256,
            description="Threads that move bytes: files that the threads engine reads or writes at the same time. "
            "io_uring uses them to open, link and copy.",
        ),
    ] = 4
    io_engine: Annotated[
        Literal["auto", "threads", "io_uring"],
        Field(description="What moves the bytes; auto: io_uring where this kernel allows it, threads otherwise."),
    ] = "auto"
    queue_depth: Annotated[
        int,
        Field(
            ge=1,
            le=4096,
            description="Objects that are given to the engine at the same time; the others wait before it.",
        ),
    ] = 64
    in_flight_max_mb: Annotated[
        int,
        Field(ge=1, le=65_536, description="MiB that the engine moves at the same time; more waits in it, in order."),
    ] = 1024

    @field_validator("relative_tmp_dir", mode="before")
    @classmethod
    def _usual_when_empty(cls, value: object) -> object:
        return cls.model_fields["relative_tmp_dir"].default if value == "" else value
