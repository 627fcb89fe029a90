"""`terrine mechanisms`: which mechanisms a project can be opened with, and their parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from terrine_server.cli.console import as_json, console, fail, with_json
from terrine_server.cli.specs import parse_spec, show_kind, show_kinds, stated


def parse_mechanism(text: str) -> dict[str, Any]:
    """Return the specification that `--mechanism` states; its parameters are not checked yet."""
    name, parameters = parse_spec("--mechanism", text)
    return {"name": name, **parameters}


def mechanism_text(spec: dict[str, Any]) -> str:
    """Return a specification as `parse_mechanism` reads it."""
    return stated(spec["name"], {key: value for key, value in spec.items() if key != "name"})


@with_json
def mechanisms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show what this one's parameters mean.")
    ] = None,
) -> None:
    """List the mechanisms with their parameters; those in brackets may be left out."""
    from importlib.metadata import entry_points

    from terrine_protocol import MECHANISM_SPECS
    from terrine_server.privacy.mechanisms import GROUP

    if name is None:
        show_kinds(MECHANISM_SPECS)
        if not as_json():
            for each in entry_points(group=GROUP):
                package = each.dist.name if each.dist else "?"
                console.print(f"{each.name} of the package {package}: {each.value}", soft_wrap=True)
        return
    known = name.replace("-", "_")
    if known not in MECHANISM_SPECS:
        fail(f"There is no mechanism {name!r}, but {', '.join(MECHANISM_SPECS)}.")
    show_kind(MECHANISM_SPECS[known])
    if not as_json():
        console.print(f"Price, proof and tests: docs/privacy/{known}.md.")
