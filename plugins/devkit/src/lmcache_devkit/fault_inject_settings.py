"""Settings of the `fault_inject` adapter."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.results import Outcome
from lmcache_devkit.fault_plan import Fault, Verb

Chance = Annotated[float, Field(ge=0, le=1)]


class _Faults(PluginSettings):
    """How often what goes wrong with one kind of operation.  Each rate is a share of its operations."""

    answers: ClassVar[tuple[Outcome, ...]] = ()
    """What an error may be answered with instead of being raised."""

    error: Annotated[Chance, Field(description="Rate of errors; nothing is done then.")] = 0.0
    error_as: Annotated[str, Field(description="What they are: the name of an errno, or an outcome.")] = "EIO"
    stall: Annotated[Chance, Field(description="Rate of operations that are never started.")] = 0.0
    delay: Annotated[Chance, Field(description="Rate of operations that begin later.")] = 0.0
    lost: Annotated[Chance, Field(description="Rate of jobs that are done and never answered.")] = 0.0

    @field_validator("error_as")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in errno.errorcode.values() and value not in [answer.value for answer in cls.answers]:
            outcomes = ", ".join(answer.value for answer in cls.answers)
            raise ValueError(f"must be the name of an errno such as EIO or ENOSPC, or one of: {outcomes}")
        return value

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if (total := sum(self.rates.values()) - self.lost) > 1:
            raise ValueError(
                f"the rates of one operation's faults add up to {total:g}, lost aside; at most 1 is possible"
            )
        return self

    @property
    def rates(self) -> Mapping[Fault, float]:
        """Of each fault that is possible here."""
        return {fault: getattr(self, fault.value) for fault in Fault if fault.value in type(self).model_fields}


class _TransferFaults(_Faults):
    torn: Annotated[Chance, Field(description="Rate of transfers whose second half is not written.")] = 0.0
    short: Annotated[Chance, Field(description="Rate of transfers whose last 512 bytes are not written.")] = 0.0
    corrupt: Annotated[Chance, Field(description="Rate of transfers in which one bit changes.")] = 0.0


class StoreFaults(_TransferFaults):
    """What goes wrong with stores.  Torn, short and corrupt ones are answered as done."""

    answers = (Outcome.FAILED, Outcome.REJECTED, Outcome.TIMED_OUT)


class LoadFaults(_TransferFaults):
    """What goes wrong with loads.  Torn, short and corrupt ones are answered as done."""

    answers = (Outcome.FAILED, Outcome.MISSING, Outcome.DAMAGED, Outcome.FOREIGN, Outcome.TIMED_OUT)


class LookupFaults(_Faults):
    """What goes wrong with lookups."""

    answers = (Outcome.MISSING,)


class DeleteFaults(_Faults):
    """What goes wrong with deletes."""

    answers = (Outcome.FAILED, Outcome.MISSING, Outcome.REJECTED, Outcome.TIMED_OUT)


class FaultInjectSettings(PluginSettings):
    """Which adapter is wrapped, and how often what goes wrong."""

    inner: Annotated[
        dict[str, Any],
        Field(
            description="The adapter that does the work: an object as for --l2-adapter.", examples=[{"type": "memory"}]
        ),
    ]
    seed: Annotated[int, Field(description="The same seed draws the same faults for the same objects.")] = 0
    delay_seconds: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="How much later a delayed operation begins.")
    ] = 0.05
    altered_max_mb: Annotated[
        float,
        Field(
            gt=0, allow_inf_nan=False, description="Longest object, in MiB, that a store can tear, shorten or corrupt."
        ),
    ] = 64.0
    store: Annotated[StoreFaults, Field(description="Faults of stores.")] = StoreFaults()
    lookup: Annotated[LookupFaults, Field(description="Faults of lookups.")] = LookupFaults()
    load: Annotated[LoadFaults, Field(description="Faults of loads.")] = LoadFaults()
    delete: Annotated[DeleteFaults, Field(description="Faults of deletes.")] = DeleteFaults()

    def of(self, verb: Verb) -> StoreFaults | LookupFaults | LoadFaults | DeleteFaults:
        """What goes wrong with these."""
        match verb:
            case "store":
                return self.store
            case "lookup":
                return self.lookup
            case "load":
                return self.load
            case "delete":
                return self.delete
