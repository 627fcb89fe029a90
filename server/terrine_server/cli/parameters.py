"""`terrine parameters`: what mechanisms and kinds can be told."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import (
    TYPE_CHECKING,
    Annotated,
)

import typer

from terrine_protocol import MECHANISM_SPECS
from terrine_server.cli.console import as_json, fail, output, say, with_json
from terrine_server.privacy.mechanisms import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    pass
from terrine_server.cli.options import select_described_fields, teacher_kinds


@with_json
def parameters(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show what the parameters of this one mean."),
    ] = None,
) -> None:
    """List mechanisms and kinds with their parameters; those in brackets may be left out.

    Mechanisms are what `project open --mechanism` takes, kinds what `ensemble train --kind` takes.

    [bold]Examples[/bold]: terrine parameters, terrine parameters confident_gnmax
    """
    wanted = None if name is None else name.replace("-", "_")
    listed = {"mechanism": MECHANISM_SPECS, "kind": teacher_kinds()}
    if wanted is None:
        _list_parameters(listed)
    else:
        _explain_parameters(wanted, listed)


def _list_parameters(listed: Mapping[str, Mapping[str, type]]) -> None:
    rows = [
        {
            "for": f"--{option}",
            "name": each,
            "parameters": ", ".join(
                parameter if field.is_required() else f"[{parameter}]"
                for parameter, field in select_described_fields(kind).items()
            ),
            "what it is": kind.__doc__,
        }
        for option, kinds in listed.items()
        for each, kind in kinds.items()
    ]
    found = {
        option: {each: _parameters(kind) for each, kind in kinds.items()}
        for option, kinds in listed.items()
    }
    output(found, rows)
    if as_json():
        return
    for point in entry_points(group=ENTRY_POINT_GROUP):
        package = point.dist.name if point.dist else "?"
        say(f"{point.name} of the package {package}: {point.value}")


def _explain_parameters(name: str, listed: Mapping[str, Mapping[str, type]]) -> None:
    found = {option: _parameters(kinds[name]) for option, kinds in listed.items() if name in kinds}
    if not found:
        known = sorted({each for kinds in listed.values() for each in kinds})
        fail(f"There is no mechanism and no kind {name!r}, but {', '.join(known)}.")
    rows = [{"for": f"--{option}", **row} for option, table in found.items() for row in table]
    output(found, rows)
    if "mechanism" in found and not as_json():
        say(f"Price, proof and tests: docs/privacy/{name}.md.")


def _parameters(kind: type) -> list[dict[str, object]]:
    return [
        {
            "parameter": name,
            "meaning": field.description,
            "default": "required" if field.is_required() else field.get_default(),
        }
        for name, field in select_described_fields(kind).items()
    ]
