"""Settings of the `s3` adapter."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, FilePath, SecretStr, model_validator

from lmcache_l2_s3.endpoint import EXPRESS_SUFFIX, Endpoint, PathStyle, express_service, parse_endpoint
from lmcache_object_remote import SharedSettings

StorageClass = Literal[
    "STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY", "EXPRESS_ONEZONE"
]  # fmt: skip
"""Those from which an object can be read at once."""


class S3Settings(SharedSettings):
    """The bucket, the credentials and the concurrency."""

    s3_endpoint: Annotated[
        str,
        Field(
            min_length=1,
            description="s3://bucket for AWS, or host[:port], host[:port]/bucket or bucket.host[:port] of another store.",
        ),
    ]
    s3_region: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", description="Region that requests are signed for.")]
    s3_bucket: Annotated[
        str | None,
        Field(description="Bucket, where the endpoint does not name it. Without either it is lmcache (not on AWS)."),
    ] = None
    prefix: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9_=-][A-Za-z0-9._=-]*/)*$",
            max_length=256,
            description="In front of every object's name; empty, or it ends with a slash.",
        ),
    ] = "lmcache/"
    path_style: Annotated[
        PathStyle,
        Field(
            union_mode="left_to_right",
            description="The bucket is in the path (true) or in the host's name (false). auto: in the host's name "
            "on AWS, in the path elsewhere.",
        ),
    ] = "auto"
    s3_num_io_threads: Annotated[
        int | None, Field(ge=1, le=256, description="Threads that move bytes. null: chosen by the client.")
    ] = None
    s3_prefer_http2: Annotated[
        bool, Field(description="Offer HTTP/2 before HTTP/1.1 when a connection is encrypted (ALPN).")
    ] = True
    s3_enable_s3express: Annotated[
        bool, Field(description="The bucket is one of S3 Express One Zone: sign by session.")
    ] = False
    disable_tls: Annotated[bool, Field(description="Plain HTTP.")] = False
    ca_file: Annotated[
        FilePath | None, Field(description="Certificates (PEM) that are trusted instead of the system's.")
    ] = None
    aws_access_key_id: Annotated[
        SecretStr | None,
        Field(description="Static credentials, both or neither; without them AWS's default provider chain."),
    ] = None
    aws_secret_access_key: Annotated[SecretStr | None, Field(description="The other half.")] = None
    aws_session_token: Annotated[SecretStr | None, Field(description="Of temporary static credentials.")] = None
    role_arn: Annotated[
        str | None, Field(pattern=r"^arn:\S+$", description="Role to assume (STS) with these credentials.")
    ] = None
    part_size_mb: Annotated[
        int | None,
        Field(ge=5, le=5120, description="MiB that one request moves of a larger object. null: chosen by the client."),
    ] = None
    throughput_target_gbps: Annotated[
        float, Field(gt=0, le=1000, description="Gbit/s to aim at: more connections for more.")
    ] = 10.0
    memory_limit_gb: Annotated[
        int, Field(ge=1, le=1024, description="GiB that the client may use for parts that are under way.")
    ] = 2
    max_in_flight: Annotated[
        int,
        Field(ge=1, le=4096, description="Objects that are stored or loaded at the same time; as many lookups beside."),
    ] = 64
    checksum: Annotated[
        Literal["none", "crc32c", "crc64nvme"],
        Field(description="Checksum that stores send along (as a trailer) and loads compare."),
    ] = "none"
    storage_class: Annotated[StorageClass | None, Field(description="Of new objects. null: the bucket's.")] = None
    server_side_encryption: Annotated[
        Literal["AES256", "aws:kms", "aws:kms:dsse"] | None,
        Field(description="Of new objects. null: as the bucket does it."),
    ] = None
    sse_kms_key_id: Annotated[
        str | None, Field(min_length=1, description="Key for aws:kms; without it the account's.")
    ] = None
    operation_timeout_seconds: Annotated[
        float,
        Field(
            ge=5,
            le=600,
            description="One operation with all its attempts, and the start; below the server's l2_timeout_seconds.",
        ),
    ] = 20.0
    retry_attempts_max: Annotated[int, Field(ge=1, le=10, description="Attempts of one operation.")] = 3
    retry_percent: Annotated[
        int, Field(ge=1, le=100, description="Attempts beyond the first, as a share of the operations.")
    ] = 10
    known_objects_max: Annotated[
        int, Field(ge=0, le=100_000_000, description="Objects that are remembered to be there, or not; 400 B each.")
    ] = 200_000
    max_capacity_gb: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="Most that is kept, in GiB; 0: no limit, and no eviction."),
    ] = 0.0
    recount_seconds: Annotated[
        float, Field(ge=10, description="How often the owner of a shared bucket lists it to learn what others changed.")
    ] = 600.0

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(
            self.s3_endpoint, bucket=self.s3_bucket, path_style=self.path_style, disable_tls=self.disable_tls
        )

    @property
    def capacity_bytes(self) -> int | None:
        return int(self.max_capacity_gb * 2**30) or None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        endpoint = self.endpoint
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            raise ValueError("set both of aws_access_key_id and aws_secret_access_key, or neither")
        if self.aws_session_token is not None and self.aws_access_key_id is None:
            raise ValueError("aws_session_token belongs to aws_access_key_id and aws_secret_access_key: set them, too")
        if self.ca_file is not None and not endpoint.tls:
            raise ValueError(
                "ca_file is set and the connection is not encrypted: leave one of ca_file and disable_tls out"
            )
        if self.sse_kms_key_id is not None and not (self.server_side_encryption or "").startswith("aws:kms"):
            raise ValueError("sse_kms_key_id is for server_side_encryption aws:kms or aws:kms:dsse: set it, too")
        if self.s3_enable_s3express:
            self._usable_express(endpoint)
        elif endpoint.bucket.endswith(EXPRESS_SUFFIX) and endpoint.service is None:
            raise ValueError(
                f"bucket '{endpoint.bucket}' is one of S3 Express One Zone: set s3_enable_s3express to true"
            )
        elif self.storage_class == "EXPRESS_ONEZONE":
            raise ValueError("storage_class EXPRESS_ONEZONE is for buckets of S3 Express: set s3_enable_s3express, too")
        return self

    def _usable_express(self, endpoint: Endpoint) -> None:
        if endpoint.service is not None:
            raise ValueError(
                f"s3_enable_s3express is for AWS, not for {endpoint.service}: write s3://bucket--zone--x-s3"
            )
        express_service(endpoint.bucket, self.s3_region)
        if not endpoint.tls or endpoint.path_style:
            raise ValueError(
                "S3 Express needs TLS and the bucket in the host's name: leave disable_tls and path_style out"
            )
        if self.storage_class not in (None, "EXPRESS_ONEZONE"):
            raise ValueError(f"a bucket of S3 Express keeps nothing as {self.storage_class}: leave storage_class out")
