"""Shared by all commands: the console, the ledger, output files and readable errors."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import typer
import typer.core
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from pydantic import ValidationError

    from terrine_server.ledger import Ledger

console = Console()
errors = Console(stderr=True, highlight=False)

C = TypeVar("C", bound=Callable[..., None])
_as_json = ContextVar("_as_json", default=False)

KNOWN = (
    ("terrine_server.errors", "TerrineError"),
    ("terrine_server.privacy", "ParameterError"),
    ("terrine_models.storage.manifests", "StoreError"),
    ("terrine_models.teachers.onnx_guard", "VotingError"),
    ("terrine_models.storage.onnx_models", "ModelError"),
    ("terrine_protocol.tables", "DataError"),
    ("terrine_models.teachers.shards", "TrainingError"),
    ("terrine_models.teachers.ray_cluster", "ClusterError"),
    ("terrine_server.owner.tokens", "SecretKeyError"),
    ("terrine_server.owner.checkpoints", "CheckpointError"),
    ("terrine_server.owner.backup", "BackupError"),
    ("terrine_server.dossier.owner_answers", "DossierError"),
    ("terrine_server.witness", "WitnessError"),
    ("terrine_protocol.transparency.notes", "NoteError"),
    ("terrine_protocol.transparency.trees", "ProofError"),
    ("terrine_server.owner.issuer", "IssuerError"),
    ("terrine_server.serving.listening", "CannotListen"),
    ("terrine_server.serving.listening", "TooFewDescriptors"),
    ("terrine_server.ledger.verifying.archive", "ArchiveError"),
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
        from terrine_protocol.base import in_words

        return "\n".join(
            f"{'.'.join(map(str, item['loc'])) or error.title}: {_sentence(in_words(item))}"
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
    from terrine_protocol.base import in_words

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
            sentences.append(f"{option}: {_sentence(in_words(item))}")
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
