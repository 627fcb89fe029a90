"""Options that name one of several things with its parameters: `NAME:PARAMETER=VALUE,…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from terrine_server.cli.console import fail, output

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SPEC = "NAME:PARAMETER=VALUE,…"
"""How help shows such an option."""
T = TypeVar("T")
TRUTHS = {"yes": True, "true": True, "no": False, "false": False}


def parse_spec(option: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters that an option states, which are not checked yet."""
    name, _, listed = text.partition(":")
    stated: dict[str, Any] = {}
    for each in filter(None, map(str.strip, listed.split(","))):
        parameter, equals, value = (part.strip() for part in each.partition("="))
        parameter = parameter.replace("-", "_")
        if not equals or parameter == "name":
            fail(f"{option} has {each!r}; expected PARAMETER=VALUE, as in {SPEC}.")
        if parameter in stated:
            fail(f"{option} states {parameter} twice.")
        stated[parameter] = _value(value)
    return name.strip().replace("-", "_"), stated


def stated(name: str, parameters: Mapping[str, Any]) -> str:
    """Return what `parse_spec` reads."""
    values = ",".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in parameters.items()
    )
    return f"{name}:{values}" if values else name


def built(option: str, text: str, kinds: Mapping[str, type[T]], **given: object) -> T:
    """Return what an option states: one of `kinds`, of which the described fields are parameters.

    `given`: its fields that other options state.
    """
    from pydantic import TypeAdapter

    name, parameters = parse_spec(option, text)
    kind = kinds.get(name)
    if kind is None:
        fail(f"{option} is one of {', '.join(kinds)}; not {name!r}.")
    known = described(kind)
    for parameter in parameters:
        if parameter not in known:
            has = f"its parameters are {', '.join(known)}" if known else "it has none"
            fail(f"{option}: {name} has no parameter {parameter!r}; {has}.")
    return TypeAdapter(kind).validate_python({**parameters, **given})


def described(kind: type) -> dict[str, FieldInfo]:
    """Return the fields of a pydantic class that have a description: what a user may state."""
    fields: dict[str, FieldInfo] = getattr(kind, "__pydantic_fields__")  # noqa: B009 - of any class
    return {name: each for name, each in fields.items() if each.description and name != "name"}


def show_kinds(kinds: Mapping[str, type]) -> None:
    """Print what an option may name, each with its parameters; optional ones are in brackets."""

    def parameters(kind: type) -> str:
        return ", ".join(
            name if field.is_required() else f"[{name}]" for name, field in described(kind).items()
        )

    output(
        {name: _rows(kind) for name, kind in kinds.items()},
        [
            {"name": name, "parameters": parameters(kind), "what it is": kind.__doc__}
            for name, kind in kinds.items()
        ],
    )


def show_kind(kind: type) -> None:
    """Print the parameters of one of them, and what they mean."""
    output(_rows(kind), _rows(kind))


def _rows(kind: type) -> list[dict[str, object]]:
    return [
        {
            "parameter": name,
            "meaning": field.description,
            "default": "required" if field.is_required() else field.get_default(),
        }
        for name, field in described(kind).items()
    ]


def _value(text: str) -> int | float | bool | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return TRUTHS.get(text.lower(), text)
