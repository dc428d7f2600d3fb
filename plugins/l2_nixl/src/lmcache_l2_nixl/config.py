"""Settings of both adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from lmcache_core import HEADER_BYTES, PluginSettings

FileBackend = Literal["POSIX", "GDS", "GDS_MT", "HF3FS"]
StoreBackend = Literal["POSIX", "GDS", "GDS_MT", "HF3FS", "OBJ", "AZURE_BLOB"]
OBJECT_BACKENDS: Final = ("OBJ", "AZURE_BLOB")
SLOT_BYTES: Final = 128 * 2**20
"""Where none is given: more than the chunk of any model we know of, and a file with holes takes no more than its objects."""
SLOTS_MAX: Final = 2**24

FILE_FIELDS: Final = frozenset({"file_path", "use_direct_io"})
_POSIX_FIELDS: Final = frozenset({"use_aio", "use_uring", "use_posix_aio", "ios_pool_size", "kernel_queue_size"})
_GDS_FIELDS: Final = frozenset({"batch_pool_size", "batch_limit", "max_request_size"})
_OBJ_FIELDS: Final = frozenset(
    {
        "bucket", "endpoint_override", "scheme", "region", "access_key", "secret_key", "session_token",
        "use_virtual_addressing", "num_threads", "req_checksum", "resp_checksum", "ca_bundle",
    }
)  # fmt: skip
_AZURE_FIELDS: Final = frozenset({"account_url", "container_name", "connection_string", "ca_bundle", "num_threads"})
PASSED_ON: Final = {
    "POSIX": _POSIX_FIELDS, "GDS": _GDS_FIELDS, "GDS_MT": frozenset({"thread_count"}), "HF3FS": frozenset[str](),
    "OBJ": _OBJ_FIELDS, "AZURE_BLOB": _AZURE_FIELDS,
}  # fmt: skip
"""Parameters of NIXL itself, by backend."""

Count = Annotated[int | None, Field(gt=0)]


class FileParams(PluginSettings):
    """`backend_params` of backends that keep files.  Switches and numbers may be given as text."""

    file_path: Annotated[
        Path | None, Field(description="Directory of the objects; created if need be, owned by one running server.")
    ] = None
    use_direct_io: Annotated[
        bool, Field(description="Past the page cache where the file system allows it; else a warning, and buffered.")
    ] = False
    use_aio: Annotated[bool, Field(description="POSIX: move bytes by Linux AIO.")] = False
    use_uring: Annotated[bool, Field(description="POSIX: move bytes by io_uring.")] = False
    use_posix_aio: Annotated[bool, Field(description="POSIX: move bytes by the threads of the C library.")] = False
    ios_pool_size: Annotated[Count, Field(description="POSIX: requests that NIXL keeps in store.")] = None
    kernel_queue_size: Annotated[Count, Field(description="POSIX: requests that the kernel is given at a time.")] = None
    batch_pool_size: Annotated[Count, Field(description="GDS: batches of cuFile.")] = None
    batch_limit: Annotated[Count, Field(description="GDS: requests of a batch.")] = None
    max_request_size: Annotated[Count, Field(description="GDS: largest single request in bytes.")] = None
    thread_count: Annotated[Count, Field(description="GDS_MT: threads.")] = None

    @field_validator("file_path", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError("must name a directory")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum((self.use_aio, self.use_uring, self.use_posix_aio)) > 1:
            raise ValueError(
                "use_aio, use_uring and use_posix_aio exclude each other; choose one, or none for NIXL's own"
            )
        return self

    def for_nixl(self, backend: str) -> dict[str, str]:
        """Parameters of this backend, by NIXL's names.  May hold secrets: never show them."""
        chosen = {name: getattr(self, name) for name in sorted(PASSED_ON[backend] & self.model_fields_set)}
        return {name: _text(value) for name, value in chosen.items() if value is not None}


class StoreParams(FileParams):
    """`backend_params` of a pool: those of files, or of an object store."""

    bucket: Annotated[str | None, Field(min_length=1, description="OBJ: the bucket; else AWS_DEFAULT_BUCKET.")] = None
    endpoint_override: Annotated[str | None, Field(description="OBJ: URL of a server other than Amazon's.")] = None
    scheme: Annotated[Literal["http", "https"] | None, Field(description="OBJ: http for a server without TLS.")] = None
    region: Annotated[str | None, Field(description="OBJ: region of the bucket.")] = None
    access_key: Annotated[
        SecretStr | None, Field(description="OBJ: access key; without it, the usual chain of AWS is asked.")
    ] = None
    secret_key: Annotated[SecretStr | None, Field(description="OBJ: secret key that belongs to it.")] = None
    session_token: Annotated[SecretStr | None, Field(description="OBJ: token of credentials that are for a while.")] = (
        None
    )
    use_virtual_addressing: Annotated[
        bool | None, Field(description="OBJ: bucket in the host's name; off for most servers but Amazon's.")
    ] = None
    num_threads: Annotated[Count, Field(description="OBJ, AZURE_BLOB: threads of the client.")] = None
    req_checksum: Annotated[
        Literal["required", "supported"] | None, Field(description="OBJ: when requests carry a checksum.")
    ] = None
    resp_checksum: Annotated[
        Literal["required", "supported"] | None, Field(description="OBJ: when answers are to carry one.")
    ] = None
    ca_bundle: Annotated[str | None, Field(description="OBJ, AZURE_BLOB: file of certificates to trust.")] = None
    account_url: Annotated[str | None, Field(description="AZURE_BLOB: URL of the storage account.")] = None
    container_name: Annotated[str | None, Field(min_length=1, description="AZURE_BLOB: the container.")] = None
    connection_string: Annotated[
        SecretStr | None, Field(description="AZURE_BLOB: instead of account_url, with the account's key.")
    ] = None


class DynamicParams(FileParams):
    """`backend_params` of `nixl_store_dynamic`."""

    max_capacity_gb: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="Most that is kept, in GiB; 0 means no limit (and no eviction)."),
    ] = 0.0


class _Settings(PluginSettings):
    """What both have in common."""

    queue_depth: Annotated[
        int, Field(ge=1, le=4096, description="Objects that are given to NIXL at the same time; the others wait.")
    ] = 64


class NixlStoreSettings(_Settings):
    """A pool of slots that is made once: in a file, or as objects of an object store."""

    backend: Annotated[StoreBackend, Field(description="Storage plugin of NIXL.")]
    pool_size: Annotated[int, Field(gt=0, le=SLOTS_MAX, description="Slots, each for one object.")]
    backend_params: Annotated[
        StoreParams, Field(default_factory=StoreParams, description="What the backend needs to know; see below.")
    ]
    slot_bytes: Annotated[
        int | None,
        Field(
            gt=HEADER_BYTES,
            description="Longest object, header page included; a multiple of 4096. Files: room for all slots is reserved "
            "at the start. None: 128 MiB, and a file that takes no more than its objects.",
        ),
    ] = None
    object_prefix: Annotated[
        str,
        Field(
            min_length=1, max_length=512, description="OBJ, AZURE_BLOB: in front of the names of the pool's objects."
        ),
    ] = "lmcache-pool/"
    owner_lease_seconds: Annotated[
        float,
        Field(
            ge=1,
            le=3600,
            description="OBJ, AZURE_BLOB: an owner that was silent this long counts as gone, and another may follow it.",
        ),
    ] = 60.0
    overwrite_device: Annotated[
        bool, Field(description="Discard the content of a pool that was made with another pool_size or slot_bytes.")
    ] = False
    persist_enabled: Annotated[bool, Field(description="Must be true: what is stored stays in the pool.")] = True

    @property
    def is_remote(self) -> bool:
        return self.backend in OBJECT_BACKENDS

    @field_validator("slot_bytes")
    @classmethod
    def _whole_pages(cls, value: int | None) -> int | None:
        if value is not None and value % HEADER_BYTES:
            raise ValueError(f"must be a multiple of {HEADER_BYTES}, it is {value % HEADER_BYTES} bytes more than one")
        return value

    @field_validator("persist_enabled")
    @classmethod
    def _always(cls, value: bool) -> bool:
        if not value:
            raise ValueError(
                "must stay true, a pool keeps what it stored; for objects that go with the server take "
                "nixl_store_dynamic, or remove the pool"
            )
        return value

    @model_validator(mode="after")
    def _params_fit(self) -> Self:
        _fitting(self.backend, self.backend_params)
        params = self.backend_params
        if self.backend == "AZURE_BLOB" and params.account_url and params.connection_string:
            raise ValueError("backend_params: account_url and connection_string exclude each other; give one of them")
        if bool(params.access_key) != bool(params.secret_key):
            raise ValueError("backend_params: access_key and secret_key belong together; give both, or neither")
        return self


class NixlStoreDynamicSettings(_Settings):
    """Each object a file, which is opened and registered for each transfer."""

    backend: Annotated[FileBackend, Field(description="Storage plugin of NIXL.")]
    backend_params: Annotated[
        DynamicParams, Field(default_factory=DynamicParams, description="What the backend needs to know; see below.")
    ]
    persist_enabled: Annotated[
        bool, Field(description="Keep the objects when the server stops; false removes them in an orderly stop.")
    ] = True

    @model_validator(mode="after")
    def _params_fit(self) -> Self:
        _fitting(self.backend, self.backend_params)
        return self


def _fitting(backend: str, params: FileParams) -> None:
    """Raises ValueError for fields that this backend has not, and where one is missing."""
    common = {"max_capacity_gb"} if backend in OBJECT_BACKENDS else FILE_FIELDS | {"max_capacity_gb"}
    fields = {name for name in type(params).model_fields if name in common | PASSED_ON[backend]}
    if strange := sorted(params.model_fields_set - fields):
        raise ValueError(
            f"backend_params: {', '.join(strange)} is nothing that {backend} knows; it takes {', '.join(sorted(fields))}"
        )
    if backend not in OBJECT_BACKENDS and params.file_path is None:
        raise ValueError(f"backend_params: file_path is required with {backend}; name a directory")


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else str(value)
