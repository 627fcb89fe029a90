"""What a server, or a command that trains, needs to know of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from terrine_server.settings import Settings


class RaySettings(Settings):
    """Of the add-on [ray](addons/ray.md). With `TERRINE_VOTERS=ray`, teachers vote on a cluster."""

    ray_address: Annotated[
        str | None,
        Field(
            pattern=r"^(auto|[^\s/:]+:[0-9]{1,5})$",
            description="Ray cluster for votes and training: `HOST:PORT`, or `auto` for the one to "
            "which this machine belongs. Default: start one here.",
        ),
    ] = None
    ray_actors: Annotated[
        int | None,
        Field(
            ge=1,
            le=256,
            description="How many actors of the Ray cluster vote for one server process. Default: "
            "one for each of its processors.",
        ),
    ] = None
