"""Pictures: how a file becomes an input. Owners store it, and students convert by it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from terrine_protocol.base import absent
from terrine_protocol.tables import Record

Side = Annotated[int, Field(ge=1, le=1024)]


class ImageFormat(Record):
    """What every picture is converted to: its size, and grey or colour.

    A picture is turned as its EXIF data say, laid on white where it is transparent, made grey or
    RGB, and scaled to this size, whatever its own proportions. Of a grey PNG of 16 bits, the
    highest 8 of `bits` are kept; what is brighter is white.
    """

    height: Side
    width: Side
    grey: bool
    bits: Annotated[int, Field(ge=8, le=16)] | None = Field(
        None,
        description="Of each value of a grey PNG of 16 bits, how many are used, as by a camera of "
        "12. Absent: all 16.",
        exclude_if=absent,
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one input: [H, W], or [H, W, 3] in colour. Values are from 0 to 255."""
        return (self.height, self.width) if self.grey else (self.height, self.width, 3)
