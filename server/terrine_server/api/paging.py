"""Lists in pages: their cursors, their limit, and the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from terrine_protocol import Name

Record = TypeVar("Record")


def _check_cursor(cursor: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(cursor)
    except ValidationError:
        raise PydanticCustomError(
            "cursor",
            "Not a cursor of this list. Send the `next` of the previous page, "
            "or an empty cursor for the first page",
        ) from None


_CURSOR = Query(description="The `next` of the previous page. Empty: the first page.")
TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Number = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]

NameCursor = Annotated[Name | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]
NumberCursor = Annotated[_Number | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]
TokenCursor = Annotated[TokenId | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
# Items on a page, if the request has no `limit`.
PAGE_ITEMS = 100


def render_page(
    model: type[BaseModel],
    found: Sequence[Record],
    limit: int,
    view: Callable[[Record], BaseModel],
    cursor: Callable[[Record], str],
    **beside: object,
) -> Response:
    """Return one page as JSON: the first `limit` of the records found.

    The caller queries one record more, which shows whether there is a next page. `view` turns a
    record into an item; `cursor` returns the cursor for the records after a record; `beside`: what
    else the page says.
    """
    shown = found[:limit]
    more = len(found) > limit
    items = [view(record) for record in shown]
    after = cursor(shown[-1]) if more else None
    made = model.model_validate({"items": items, "next": after, **beside})
    return Response(made.model_dump_json(), media_type="application/json")
