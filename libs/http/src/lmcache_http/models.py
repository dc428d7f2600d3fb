"""Roots of the models of what callers send and are answered.  No web framework is imported, because clients use them, too."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PAGE_SIZE_MAX: Final = 5000
"""Entries of one page."""


class RequestBody(BaseModel):
    """Root of what callers send: a JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class QueryParameters(BaseModel):
    """Root of what a query may say.  Values are text there, so that "500" is a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _at_most_a_page(size: int) -> int:
    return min(size, PAGE_SIZE_MAX)


class PageQuery(QueryParameters):
    """Of a list that comes in pages.  Its answer has `next_page_token`, null at the end of the list; a request with it, and
    with the same other parameters, gets the next page."""

    page_size: Annotated[int, AfterValidator(_at_most_a_page)] = Field(
        500, ge=1, description=f"How many at once; more than {PAGE_SIZE_MAX} are taken for {PAGE_SIZE_MAX}."
    )
    page_token: str | None = Field(
        None, min_length=1, max_length=512, description="`next_page_token` of the page before; none: the first page."
    )


class Answer(BaseModel):
    """Root of what they are answered.  A newer server may say more."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    @classmethod
    def of(cls, value: object) -> Self:
        """From the attributes of what has the same fields."""
        return cls.model_validate(value, from_attributes=True)
