"""Who asks: static keys, AWS's provider chain, or a role that is assumed; for both clients alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import botocore.session
from awscrt.auth import AwsCredentials, AwsCredentialsProvider
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, RefreshableCredentials

from lmcache_core import ResourceError
from lmcache_l2_s3.config import S3Settings

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 8


class _AssumedRole(CredentialProvider):  # type: ignore[misc]
    """Credentials of a role, taken anew before they expire."""

    METHOD = "lmcache-assumed-role"

    def __init__(self, sts: Any, role_arn: str, session_name: str) -> None:
        super().__init__()
        self._sts = sts
        self._role = role_arn
        self._session_name = session_name

    def load(self) -> Any:
        return RefreshableCredentials.create_from_metadata(
            metadata=self._assume(), refresh_using=self._assume, method=self.METHOD
        )

    def _assume(self) -> Mapping[str, str]:
        given = self._sts.assume_role(RoleArn=self._role, RoleSessionName=self._session_name)["Credentials"]
        return {
            "access_key": given["AccessKeyId"],
            "secret_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            "expiry_time": given["Expiration"].isoformat(),
        }


def session_of(settings: S3Settings, instance_id: str) -> Any:
    """A session of botocore that signs as the settings say.  Opens no connection yet."""
    session = botocore.session.Session()
    if settings.aws_access_key_id is not None and settings.aws_secret_access_key is not None:
        token = settings.aws_session_token
        session.set_credentials(
            settings.aws_access_key_id.get_secret_value(),
            settings.aws_secret_access_key.get_secret_value(),
            token.get_secret_value() if token else None,
        )
    if settings.role_arn is None:
        return session
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries={"max_attempts": 2})
    sts = session.create_client("sts", region_name=settings.s3_region, config=config)
    name = re.sub(r"[^A-Za-z0-9_=,.@-]", "-", f"lmcache-{instance_id}")[:64]
    assuming = botocore.session.Session()
    assuming.register_component("credential_provider", CredentialResolver([_AssumedRole(sts, settings.role_arn, name)]))
    return assuming


class SigningKeys:
    """The credentials of a session, for the CRT client, whose threads must not wait for a refresh: they take what is at
    hand, and `refresh` is called often enough on a thread that may wait."""

    REFRESH_SECONDS: Final = 30.0
    """Much shorter than the ten minutes before their end from which on botocore renews credentials."""

    def __init__(self, session: Any, adapter: str) -> None:
        """Blocks: looks for credentials, over the network perhaps.  Raises ResourceError where there are none, and what
        botocore raises."""
        found = session.get_credentials()
        if found is None:
            raise ResourceError(
                f"{adapter}: no credentials were found: set aws_access_key_id and aws_secret_access_key, or give the server "
                "AWS's environment variables, a shared credentials file, or a role of its machine"
            )
        self._credentials: Final = found
        self.expire: Final = isinstance(found, RefreshableCredentials)
        self._now: AwsCredentials
        self.refresh()

    def refresh(self) -> None:
        """Blocks; renews what is about to expire.  Raises what botocore raises; what there was is used on then."""
        frozen = self._credentials.get_frozen_credentials()
        self._now = AwsCredentials(frozen.access_key, frozen.secret_key, frozen.token)

    def provider(self) -> Any:
        """For the CRT client.  Keeps this object, and is called on the client's threads."""
        if self.expire:
            return AwsCredentialsProvider.new_delegate(lambda: self._now)
        now = self._now
        return AwsCredentialsProvider.new_static(now.access_key_id, now.secret_access_key, now.session_token)
