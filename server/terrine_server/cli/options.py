"""Options that state several values, such as `--mechanism`, and those made of a model's fields."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from terrine_protocol.base import explain_error
from terrine_server.cli.console import fail, sentence
from terrine_server.owner.sums import SumSettings
from terrine_server.planning.expected import Consensus

if TYPE_CHECKING:
    from terrine_models.teachers.manifests import TeacherSettings
    from terrine_models.teachers.neighbours import NeighbourSettings

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")

EnsembleName = Annotated[
    str, typer.Argument(metavar="ENSEMBLE", help="Name of an ensemble, or its directory.")
]
NewEnsemble = Annotated[
    str, typer.Option("--name", help="Name of the ensemble: a-z, 0-9, '-' and '_'.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, for scripts.")]

# How help shows such an option.
SPEC = "NAME:PARAMETER=VALUE,…"
_TRUTH_VALUES = {"yes": True, "true": True, "no": False, "false": False}


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


def parse_kind(option: str, text: str, kinds: Mapping[str, type[T]]) -> T:
    """Return one of `kinds`, with the parameters that an option states."""
    name, parameters = parse_spec(option, text)
    kind = kinds.get(name)
    if kind is None:
        fail(f"{option} is one of {', '.join(kinds)}; not {name!r}.")
    known = select_described_fields(kind)
    for parameter in parameters:
        if parameter not in known:
            has = f"its parameters are {', '.join(known)}" if known else "it has none"
            fail(f"{option}: {name} has no parameter {parameter!r}; {has}.")
    for parameter, field in known.items():
        if field.is_required() and parameter not in parameters:
            fail(f"{option}: {name} needs {parameter}, as in {option} {name}:{parameter}=1.")
    return TypeAdapter(kind).validate_python(parameters)


def select_described_fields(kind: type) -> dict[str, FieldInfo]:
    """Return the fields that a user may state: those that have a description."""
    fields: dict[str, FieldInfo] = getattr(kind, "__pydantic_fields__")  # noqa: B009 - of any class
    return {name: each for name, each in fields.items() if each.description and name != "name"}


def _value(text: str) -> int | float | bool | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _TRUTH_VALUES.get(text.lower(), text)


def parse_mechanism(text: str) -> dict[str, Any]:
    """Return the specification that `--mechanism` states; its parameters are not checked yet."""
    name, parameters = parse_spec("--mechanism", text)
    return {"name": name, **parameters}


def teacher_kinds() -> Mapping[str, type[TeacherSettings | NeighbourSettings | SumSettings]]:
    """What `ensemble train --kind` takes: nothing where no PyTorch is installed."""
    if find_spec("torch") is None:
        return {}
    # PyTorch comes with these.
    from terrine_models.teachers.kinds import trainable
    from terrine_models.teachers.neighbours import NeighbourSettings

    return {
        **trainable(),
        NeighbourSettings.kind: NeighbourSettings,
        SumSettings.kind: SumSettings,
    }


def _parse_consensus(text: str) -> list[dict[str, float]]:
    return [{"agreement": level.agreement, "share": level.share} for level in Consensus.parse(text)]


# Fields that are written as one text: how help shows them, and what reads them.
TEXTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "mechanism": (SPEC, parse_mechanism),
    "consensus": ("C[:SHARE],…", _parse_consensus),
}


def takes(
    model: type[M], *, arguments: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[M, P], None]], Callable[..., None]]:
    """Give a command an option for each field of `model`, an instance of which it is called with.

    The fields named in `arguments` are positional. Those `without` an option, and those that are
    models themselves and not in `TEXTS`, keep their default.
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
                fail(_explain_options(error))
            command(act, *args, **given)

        del derived.__wrapped__  # else its signature would be read
        listed = [
            *filter(_is_argument, others),
            *sorted(options, key=lambda each: each.default is not inspect.Parameter.empty),
            *(each for each in others if not _is_argument(each)),
        ]
        derived.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in listed]
        )
        derived.__annotations__ = {each.name: each.annotation for each in listed}
        return derived

    return decorate


def _option(name: str, field: FieldInfo, positional: bool) -> inspect.Parameter:
    kind, metavar, default = _plain(field.annotation), None, field.get_default()
    if name in TEXTS:
        metavar, kind = TEXTS[name][0], str
    if positional or field.is_required():
        default = inspect.Parameter.empty
    info: Any = typer.Option(metavar=metavar, help=field.description)
    if positional:
        info = typer.Argument(metavar=name.upper(), help=field.description)
    elif kind is bool:  # a switch, which needs no way to say no
        info = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
    elif default is not inspect.Parameter.empty:
        kind = kind | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
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


def _explain_options(error: ValidationError) -> str:
    """Return which options of a command are wrong, and how."""
    sentences, missing, mechanism = [], [], ""
    for item in error.errors(include_url=False):
        if not item["loc"]:
            sentences.append(sentence(item["msg"]))
            continue
        *above, name = (str(part) for part in item["loc"])
        if above and above[0] == "mechanism":
            option = name  # a parameter
        else:
            option = f"--{name.replace('_', '-')}" if above or name != "name" else "NAME"
        if item["type"] == "missing":
            missing.append(option)
            mechanism = above[-1]
        elif item["type"] == "extra_forbidden":
            sentences.append(f"{option} is not for {above[-1]}.")
        elif item["type"] == "union_tag_invalid":
            tags, tag = item["ctx"]["expected_tags"], item["ctx"]["tag"]
            sentences.append(f"--mechanism is one of {tags}; not '{tag}'.")
        else:
            sentences.append(f"{option}: {sentence(explain_error(item))}")
    if missing:
        sentences.append(
            f"{mechanism} needs {', '.join(missing)}: --mechanism {mechanism}:{missing[0]}=…; "
            f"`terrine plan {mechanism}` proposes values."
        )
    return "\n".join(sentences)
