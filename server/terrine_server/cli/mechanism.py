"""`--mechanism NAME:PARAMETER=VALUE,…`, and `terrine mechanism`, which says what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from terrine_server.cli.console import AsJson, console, fail, print_json

app = typer.Typer(no_args_is_help=True, help="Which mechanisms there are, and their parameters.")

EXAMPLE = "confident_gnmax:threshold=600,sigma1=200,sigma2=120"
Mechanism = Annotated[
    str,
    typer.Option(
        metavar="NAME:PARAMETER=VALUE,…",
        help=f"Such as {EXAMPLE}; `terrine mechanism list` names all, `terrine plan` proposes one.",
    ),
]


def parse_mechanism(text: str) -> dict[str, Any]:
    """Return the specification that an option states; its parameters are not checked yet."""
    name, _, listed = text.partition(":")
    spec: dict[str, Any] = {"name": name.strip().replace("-", "_")}
    for each in filter(None, map(str.strip, listed.split(","))):
        parameter, equals, value = each.partition("=")
        parameter = parameter.strip().replace("-", "_")
        if not equals or parameter == "name":
            fail(f"--mechanism has {each!r}; expected PARAMETER=VALUE, as in {EXAMPLE}.")
        if parameter in spec:
            fail(f"--mechanism states {parameter} twice.")
        spec[parameter] = _number(parameter, value.strip())
    return spec


def stated(spec: dict[str, Any]) -> str:
    """Return a specification as `parse_mechanism` reads it."""
    values = ",".join(f"{name}={value:g}" for name, value in spec.items() if name != "name")
    return f"{spec['name']}:{values}"


def _number(parameter: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    fail(f"--mechanism: {parameter} takes a number, not {value!r}.")


@app.command("list")
def list_mechanisms(as_json: AsJson = False) -> None:
    """List the mechanisms with their parameters; those in brackets may be left out."""
    from terrine_protocol import MECHANISM_SPECS

    if as_json:
        print_json([spec.model_json_schema() for spec in MECHANISM_SPECS.values()])
        return
    table = Table("mechanism", "parameters", "what it does")
    for name, spec in MECHANISM_SPECS.items():
        fields = ((key, field) for key, field in spec.model_fields.items() if key != "name")
        parameters = (key if field.is_required() else f"[{key}]" for key, field in fields)
        table.add_row(name, ", ".join(parameters).replace("[", r"\["), spec.__doc__)
    console.print(table)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `terrine mechanism list` has it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show a mechanism's parameters, and what they mean."""
    from terrine_protocol import MECHANISM_SPECS

    spec = MECHANISM_SPECS.get(name.replace("-", "_"))
    if spec is None:
        fail(f"There is no mechanism {name!r}, but {', '.join(MECHANISM_SPECS)}.")
    if as_json:
        print_json(spec.model_json_schema())
        return
    console.print(spec.__doc__)
    table = Table("parameter", "meaning", "default")
    for key, field in spec.model_fields.items():
        if key != "name":
            default = "required" if field.is_required() else "none"
            table.add_row(key, field.description, default)
    console.print(table)
    console.print(f"Price, proof and tests: docs/privacy/{name.replace('-', '_')}.md.")
