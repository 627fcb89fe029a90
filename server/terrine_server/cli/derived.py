"""Commands whose options are the fields of a pydantic model, so that an act is described once."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from terrine_server.cli.console import by_option, fail
from terrine_server.cli.mechanism import parse_mechanism
from terrine_server.cli.specs import SPEC

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")


def _parse_consensus(text: str) -> list[dict[str, float]]:
    from terrine_server.planning.forecast import Consensus

    return [{"agreement": level.agreement, "share": level.share} for level in Consensus.parse(text)]


TEXTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "mechanism": (SPEC, parse_mechanism),
    "consensus": ("C[:SHARE],…", _parse_consensus),
}
"""Fields that are written as one text: how help shows them, and what reads them."""


def takes(
    model: type[M], *, arguments: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[M, P], None]], Callable[..., None]]:
    """Give a command an option for each field of `model`, an instance of which it is called with.

    The fields named in `arguments` are positional; those `without` an option keep their default.
    Fields that are models themselves have no
    option, except those in `TEXTS`. The other parameters of the command stay as they are.
    """
    names = [
        name
        for name, field in model.model_fields.items()
        if name not in without and _is_plain(name, field)
    ]

    def decorate(command: Callable[Concatenate[M, P], None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        _, *others = signature.parameters.values()
        options = [_option(name, model.model_fields[name], name in arguments) for name in names]

        @wraps(command)
        def derived(*args: P.args, **given: P.kwargs) -> None:
            values = {name: given.pop(name) for name in names}
            for name, (_, parse) in TEXTS.items():
                if values.get(name) is not None:
                    values[name] = parse(str(values[name]))
            try:
                act = model.model_validate(
                    {name: value for name, value in values.items() if value is not None}
                )
            except ValidationError as error:
                fail(by_option(error))
            command(act, *args, **given)

        del derived.__wrapped__  # else its signature would be read
        positional = [each for each in others if _is_argument(each)]
        rest = [each for each in others if not _is_argument(each)]
        required = [each for each in options if each.default is inspect.Parameter.empty]
        optional = [each for each in options if each.default is not inspect.Parameter.empty]
        listed = [*positional, *required, *optional, *rest]
        derived.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in listed]
        )
        derived.__annotations__ = {each.name: each.annotation for each in listed}
        return derived

    return decorate


def _option(name: str, field: FieldInfo, argument: bool) -> inspect.Parameter:
    described = field.description or ""
    metavar, kind = None, _plain(field.annotation)
    if name in TEXTS:
        metavar, kind = TEXTS[name][0], str
    if argument:
        known = typer.Argument(metavar=name.upper(), help=described)
        annotation: Any = Annotated[kind, known]
        default = inspect.Parameter.empty
    elif kind is bool:  # a switch, which needs no way to say no
        annotation = Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", help=described)]
        default = field.get_default()
    elif field.is_required():
        annotation = Annotated[kind, typer.Option(metavar=metavar, help=described)]
        default = inspect.Parameter.empty
    else:
        annotation = Annotated[kind | None, typer.Option(metavar=metavar, help=described)]
        default = field.get_default()
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _is_plain(name: str, field: FieldInfo) -> bool:
    kind = _plain(field.annotation)
    return name in TEXTS or not (isinstance(kind, type) and issubclass(kind, BaseModel))


def _plain(annotation: Any) -> Any:
    """Return a field's type without None and without its constraints."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [_plain(each) for each in get_args(annotation) if each is not types.NoneType]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, typer.models.ArgumentInfo) for each in metadata)
