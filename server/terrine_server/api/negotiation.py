"""What a client sends and wants to get, by its headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request

from terrine_server.errors import UnsupportedMediaType

QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def preferred(accept: str, offers: Sequence[str]) -> str:
    """Return the media type of `offers` that an Accept header prefers (RFC 9110, section 12.5.1).

    Of equals the one that the header names first, then the one that is offered first. If it accepts
    none of them, the first offer: a client gets an answer that it may not read, rather than none.
    """
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    wanted = []
    for place, offer in enumerate(offers):
        # The most specific range that matches says how much an offer is wanted.
        matching = [
            (kind != "*/*", "*" not in kind, quality, -at)
            for at, (kind, quality) in enumerate(ranges)
            if kind in (offer, f"{offer.partition('/')[0]}/*", "*/*")
        ]
        if matching:
            *_, quality, at = max(matching)
            wanted.append((quality, at, -place, offer))
    found = max(wanted, default=(0, 0, 0, offers[0]))
    return found[-1] if found[0] > 0 else offers[0]


async def json_only(request: Request) -> None:
    """Refuse a body that does not say that it is JSON. Raises `UnsupportedMediaType`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/json"):
        raise UnsupportedMediaType(f"The content type {kind!r} is not application/json.")


JsonBody = Annotated[None, Depends(json_only)]


def _range(part: str) -> tuple[str, float]:
    kind, *parameters = (each.strip() for each in part.lower().split(";"))
    found = next((m for m in map(QUALITY.fullmatch, parameters) if m), None)
    return kind, 1.0 if found is None else float(found[1])
