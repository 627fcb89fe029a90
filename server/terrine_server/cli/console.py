"""Shared by all commands: the console, the ledger, output files and readable errors."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    TextIO,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import typer
import typer.core
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from terrine_server.ledger import Ledger


console = Console()
errors = Console(stderr=True, highlight=False)

C = TypeVar("C", bound=Callable[..., None])
_as_json = ContextVar("_as_json", default=False)

KNOWN = (
    ("terrine_server.errors", "TerrineError"),
    ("terrine_server.privacy", "ParameterError"),
    ("terrine_models.storage.manifests", "StoreError"),
    ("terrine_addons.onnx.teachers", "VotingError"),
    ("terrine_addons.onnx.models", "ModelError"),
    ("terrine_protocol.tables", "DataError"),
    ("terrine_models.teachers.shards", "TrainingError"),
    ("terrine_addons.ray.training", "ClusterError"),
    ("terrine_server.owner.sign_in", "SecretKeyError"),
    ("terrine_server.owner.checkpoints", "CheckpointError"),
    ("terrine_server.owner.backup", "BackupError"),
    ("terrine_addons.dossier.words", "DossierError"),
    ("terrine_addons.witness.service", "WitnessError"),
    ("terrine_protocol.transparency", "NoteError"),
    ("terrine_protocol.transparency", "ProofError"),
    ("terrine_addons.oidc.issuer", "IssuerError"),
    ("terrine_server.serving.listening", "CannotListen"),
    ("terrine_server.serving.listening", "TooFewDescriptors"),
    ("terrine_server.ledger.verifying", "ArchiveError"),
    ("terrine_client.errors", "TerrineError"),
)
"""Errors whose text is written for the user. Looked up only if their module is imported."""


class CommandError(Exception):
    """Ends a command. The text says what is wrong and what to do."""


def fail(message: str) -> NoReturn:
    """End the command with `message` on stderr and exit code 1."""
    raise CommandError(message)


def command_text(*words: object) -> str:
    """Return a command of `terrine` as it is typed in a shell.

    A file whose name begins with a dash is written so that it is not taken for an option.
    """
    typed = [
        f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)
        for word in words
    ]
    return shlex.join(["terrine", *typed])


def ask_for_json(context: typer.Context) -> None:
    """Let the command of this context print JSON."""
    _as_json.set(True)
    context.call_on_close(lambda: _as_json.set(False))


def as_json() -> bool:
    """Whether `terrine --json` was asked for."""
    return _as_json.get()


def with_json(command: C) -> C:
    """Mark a command that prints JSON if `as_json`. Others refuse before they do anything."""
    command.with_json = True  # type: ignore[attr-defined]
    return command


class Command(typer.core.TyperCommand):
    """A command that refuses `--json` if it has no JSON form."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        if as_json() and not getattr(self.callback, "with_json", False):
            fail(f"`{ctx.command_path}` has no JSON form. Leave --json out.")
        return super().invoke(ctx)


def opened_ledger() -> Ledger:
    """Return the ledger that the settings name. It is of this schema and key.

    Raises SchemaMismatch, NotSealed or DatabaseUnavailable, and SecretKeyError without a key.
    """
    from terrine_server.ledger import check_schema, connect
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    settings = Settings()
    check_schema(connect(settings.database, settings.database_password()))
    ledger = open_ledger(settings)
    ledger.check_sealed()
    return ledger


@contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file as `terrine_protocol.files.replacing` does. It is UTF-8."""
    from terrine_protocol.files import replacing

    if output is None:
        with _utf8(sys.stdout):
            yield sys.stdout
        return
    try:
        with replacing(output) as file:
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            yield text
            text.detach()
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror or error}.")


@contextmanager
def _utf8(stream: TextIO) -> Iterator[None]:
    """Write data to a stream in UTF-8, whatever the encoding of the text for people."""
    usual = stream.encoding
    try:
        _set_encoding(stream, "utf-8")
        yield
        stream.flush()
    finally:
        _set_encoding(stream, usual)


def _set_encoding(stream: TextIO, encoding: str) -> None:
    if isinstance(stream, TextIOWrapper):  # what a program has put in its place may be none
        stream.reconfigure(encoding=encoding)


def print_json(value: object) -> None:
    """Write a pydantic model, or lists and dicts of models and plain values, to stdout."""
    from pydantic_core import to_json

    with writing(None):
        typer.echo(to_json(value, indent=2).decode())


Row = Mapping[str, object]
"""What people read of one thing, by heading."""


def output(value: object, people: Row | Sequence[Row]) -> None:
    """Print `value` as JSON, or what people read of it: a row for each field, or for each item.

    Fields that are None or empty are left out. Texts are shown as they are, without markup.
    """
    if as_json():
        print_json(value)
        return
    if isinstance(people, Mapping):
        table = Table(show_header=False, box=None, pad_edge=False)
        for heading, shown in people.items():
            if shown is not None and shown != "":
                table.add_row(heading, _cell(shown))
    else:
        first, *others = people[0] if people else [""]
        table = Table(Column(first, no_wrap=True), *others)
        for row in people:
            table.add_row(*map(_cell, row.values()))
        if not people:
            console.print("None.")
            return
    console.print(table)


def _cell(shown: object) -> Text:
    match shown:
        case None:
            return Text("")
        case bool():
            return Text("yes" if shown else "no")
        case int():
            return Text(f"{shown:,}", justify="right")
        case float():
            return Text(f"{shown:.4g}", justify="right")
        case datetime():
            return Text(f"{shown:%Y-%m-%d %H:%M} UTC")
        case _:
            return Text(str(shown))


def explain(error: BaseException) -> str | None:
    """Return the message for the user, or None when `error` is a bug in Terrine."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, CommandError | OSError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if not package.startswith("terrine"):
            return (
                f"{package} is not installed, and this command needs it. "
                f"In a checkout: pip install '.[{_extra(sys.argv[1:])}]'"
            )
    for module, name in KNOWN:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return str(error)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        from terrine_protocol.base import explain_error

        return "\n".join(
            f"{'.'.join(map(str, item['loc'])) or error.title}: {_sentence(explain_error(item))}"
            for item in error.errors(include_url=False, include_input=False)
        )
    return None


def _extra(words: list[str]) -> str:
    """Return the extra with which a command line runs."""
    if "--data-dir" in words:
        place = words.index("--data-dir")
        words = words[:place] + words[place + 2 :]
    match [word for word in words if word != "--json" and not word.startswith("--data-dir=")]:
        case ["student", *_]:
            return "student"
        case ["audit", *words] if {"mechanisms", "ledger"} & {*words} and "service" not in words:
            return "auditor"  # attacks on a server need one
        case ["ledger" | "log", *_]:
            return "auditor"
        case ["witness", *_]:
            return "witness"
        case ["dossier", *words] if any(word.startswith("--check") for word in words):
            return "signatures"  # of the dossier: no ledger is there
        case _:
            return "server"


def by_option(error: ValidationError) -> str:
    """Say what is wrong with a project's terms in the words of the command line."""
    from terrine_protocol.base import explain_error

    sentences, missing, mechanism = [], [], ""
    for item in error.errors(include_url=False):
        if not item["loc"]:
            sentences.append(_sentence(item["msg"]))
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
            sentences.append(f"{option}: {_sentence(explain_error(item))}")
    if missing:
        sentences.append(
            f"{mechanism} needs {', '.join(missing)}: --mechanism {mechanism}:{missing[0]}=…; "
            f"`terrine plan {mechanism}` proposes values."
        )
    return "\n".join(sentences)


def run(command: Callable[[], Any]) -> NoReturn:
    """Run `command`. Errors become a message on stderr and exit code 1."""
    if hasattr(signal, "pthread_kill"):
        sys.unraisablehook = _interrupt_again
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # cp1252 has no ε, and ASCII no é
    try:
        if not all(map(_is_text, sys.argv)):
            fail("The arguments must be UTF-8 text.")
        command()
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:  # any error: its user gets a sentence, not a traceback
        message = explain(error)
        if message is None:
            if os.environ.get("TERRINE_DEBUG"):
                raise
            message = (
                f"A bug in Terrine: {type(error).__name__}: {error}. "
                "Set TERRINE_DEBUG=1 to see the traceback, and please report it."
            )
        errors.print(Text.assemble(("Error:", "bold red"), " ", message), soft_wrap=True)
        sys.exit(1)
    sys.exit(0)


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came while Python ran a finalizer, from where no error gets out."""
    if dropped.exc_type is KeyboardInterrupt:
        # Later, by another thread: raised here, it would be dropped as well.
        main = threading.main_thread().ident
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def _sentence(message: str) -> str:
    """End pydantic's message with a full stop; drop its prefix from our own messages."""
    message = message.removeprefix("Value error, ")
    return message if message.endswith((".", "?")) else f"{message}."


def _is_text(argument: str) -> bool:
    """Whether an argument was UTF-8; Python turns other bytes into lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


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
    from terrine_server.privacy.mechanisms import ENTRY_POINT_GROUP

    if name is None:
        show_kinds(MECHANISM_SPECS)
        if not as_json():
            for each in entry_points(group=ENTRY_POINT_GROUP):
                package = each.dist.name if each.dist else "?"
                console.print(f"{each.name} of the package {package}: {each.value}", soft_wrap=True)
        return
    known = name.replace("-", "_")
    if known not in MECHANISM_SPECS:
        fail(f"There is no mechanism {name!r}, but {', '.join(MECHANISM_SPECS)}.")
    show_kind(MECHANISM_SPECS[known])
    if not as_json():
        console.print(f"Price, proof and tests: docs/privacy/{known}.md.")


M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")


def _parse_consensus(text: str) -> list[dict[str, float]]:
    from terrine_server.planning.consensus import Consensus

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


def spent_by_whom(mechanism: str) -> str:
    """Say why few answers of neighbours spend much, and further ones little."""
    if mechanism != "neighbours":
        return ""
    return (
        ": what a person near every query so far has spent, at most. It grows fast at first, and "
        "stops at ε: who has spent it votes no more"
    )
