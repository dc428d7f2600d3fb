"""Settings that every backend has which several servers may use."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from lmcache_core import PluginSettings


class SharedSettings(PluginSettings):
    """Is the backend this server's alone, and who keeps order in it?"""

    shared: Annotated[bool, Field(description="Other servers use this backend, too.")] = False
    owner: Annotated[
        bool | None,
        Field(
            description="This server keeps order in the backend: it accounts for its capacity, evicts, and removes what is "
            "left over. null: it does, unless the backend is shared."
        ),
    ] = None
    owner_lease_seconds: Annotated[
        float,
        Field(
            ge=1, le=3600, description="An owner that was silent this long counts as gone, and another may follow it."
        ),
    ] = 60.0

    @property
    def owns(self) -> bool:
        return not self.shared if self.owner is None else self.owner

    @model_validator(mode="after")
    def _someone_owns(self) -> Self:
        if self.owner is False and not self.shared:
            raise ValueError(
                "field 'owner' is false, so another server has to own this backend: set 'shared' to true, "
                "or leave 'owner' out"
            )
        return self
