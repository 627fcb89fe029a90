"""What commands print, and how they end: the console, output files and readable errors."""

from __future__ import annotations

import os
import re
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
from typing import Any, NoReturn, TextIO, TypeVar

import typer
import typer.core
from pydantic import ValidationError
from pydantic_core import to_json
from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.control import Control
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from terrine_models.addons import added_names, addons
from terrine_protocol.base import explain_error
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import replacing
from terrine_protocol.names import show_name, show_text


class _Shown:
    """What is printed, without characters of names and texts that would act on a terminal."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            control = segment.control is not None
            yield segment if control else Segment(show_text(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._renderable)


class _ShowText(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap all but control codes of Rich's own."""
        return [each if isinstance(each, Control) else _Shown(each) for each in renderables]


def make_console(**options: Any) -> Console:
    """Return a console on which names of files and servers cannot act."""
    made = Console(**options)
    made.push_render_hook(_ShowText())
    return made


console = make_console()
errors = make_console(stderr=True, highlight=False)

# What JSON may hold as it is, and a terminal acts on or turns; escaped, it is the same text.
_UNSHOWN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_AS_OWNER = "docker compose run --rm --no-deps migrate "
_WITH_FILES = "docker compose run --rm --no-TTY with-files"
# How a command of whoever runs the service is typed on Compose's host: docs/deploying.md.
_IN_COMPOSE = {
    "serve": "docker compose up --detach --wait",
    "quickstart": f"{_WITH_FILES} quickstart",
    **{
        command: f"{_AS_OWNER}{command}"
        for command in (
            "upgrade",
            "backup",
            "restore",
            "init --service-role",  # these three before what begins as they do
            "ledger restored",
            "ledger seal",
        )
    },
    "init": f"{_AS_OWNER}init --service-role terrine_service",
    **{
        command: f"docker compose exec server terrine {command}"
        for command in (
            "doctor",
            "ensemble",
            "ledger",
            "parameters",
            "plan",
            "project",
            "token",
            *added_names("in_server"),
        )
    },
}
_COMMAND = re.compile(rf"(?<!exec server )\bterrine ({'|'.join(_IN_COMPOSE)})\b")
# By words of a command line: which extra it needs, if not `server`. See `Addon.extras`.
_EXTRAS = {"student": "student", "ledger": "auditor"}
C = TypeVar("C", bound=Callable[..., None])
_as_json = ContextVar("_as_json", default=False)


class CommandError(TerrineError):
    """Ends a command."""


def fail(message: str) -> NoReturn:
    """End the command with `message` on stderr and exit code 1."""
    raise CommandError(message)


def say(text: str, *, to: Console = console, markup: bool = False, style: str = "") -> None:
    """Print a text for people, as it is unless it has `markup`; a terminal breaks its lines."""
    to.print(as_typed(text), style=style, markup=markup, highlight=False, soft_wrap=True)


def warn(text: str, *, to: Console = console) -> None:
    """Print what somebody should look at, but need not change."""
    to.print(Text.assemble(("Warning:", "bold yellow"), " ", as_typed(text)), soft_wrap=True)


def in_compose() -> bool:
    """Return whether this runs in a container of docker-compose.yml."""
    return os.environ.get("TERRINE_STARTED_BY") == "compose"


def as_typed(text: str) -> str:
    """Return a text with the commands of `terrine` in it as they are typed on the host."""
    return _COMMAND.sub(lambda found: _IN_COMPOSE[found[1]], text) if in_compose() else text


def command_text(*words: object) -> str:
    """Return a command of `terrine` as a shell takes it, also with files called as options are.

    In Compose the files that are named by relative paths, here those beside the command, are sent.
    """
    typed = [
        f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)
        for word in words
    ]
    command = shlex.join(["terrine", *typed])
    files = [word for word in words if isinstance(word, Path) and not word.is_absolute()]
    if not files or not in_compose() or words[0] == "student":
        return as_typed(command)
    send = shlex.join(["tar", "--create", "--", *map(str, files)])
    return f"{send} | {_WITH_FILES} {command.removeprefix('terrine ')}"


def ask_for_json(context: typer.Context) -> None:
    """Let the command of this context print JSON."""
    _as_json.set(True)
    context.call_on_close(lambda: _as_json.set(False))


def as_json() -> bool:
    """Return whether `terrine --json` was given."""
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


def name_output(output: Path | None) -> Path | None:
    """Return the file that an option names; None for standard output, as `-` does: a callback."""
    return None if str(output) == "-" else output


@contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file as `terrine_protocol.files.replacing` does. It is UTF-8."""
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
    with writing(None):
        text = to_json(value, indent=2).decode()
        typer.echo(_UNSHOWN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


# Values for people, by heading.
Row = Mapping[str, object]


def output(value: object, people: Row | Sequence[Row]) -> None:
    """Print `value` as JSON, or what people read of it: see `tabulate`."""
    if as_json():
        print_json(value)
    elif people:
        console.print(tabulate(people))
    else:
        console.print("None.")


def tabulate(people: Row | Sequence[Row]) -> Table:
    """Return a table with a row for each field, or for each of several things.

    Fields that are None or empty are left out. Texts are shown as they are, without markup.
    """
    if isinstance(people, Mapping):
        table = Table(show_header=False, box=None, pad_edge=False)
        for heading, shown in people.items():
            if shown is not None and shown != "":
                table.add_row(heading, _cell(shown, lines=True))
        return table
    first, *others = people[0]
    table = Table(Column(first, no_wrap=True), *others)
    for row in people:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(shown: object, lines: bool = False) -> Text:
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
            return Text(show_text(str(shown)) if lines else show_name(str(shown)))


def explain(error: BaseException) -> str | None:
    """Return the message for the user, or None when `error` is a bug in Terrine."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError | TerrineError):
        return str(error)
    if isinstance(error, ValidationError):
        return "\n".join(
            f"{'.'.join(map(str, item['loc'])) or error.title}: {sentence(explain_error(item))}"
            for item in error.errors(include_url=False, include_input=False)
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if not package.startswith("terrine"):
            return (
                f"{package} is not installed, and this command needs it. "
                f"In a checkout: pip install '.[{_extra(sys.argv[1:])}]'"
            )
    if isinstance(error, MemoryError):
        return (
            "There is not enough memory for this. Give the process more (a container's limit, "
            "`ulimit -v`), or ask for less at once: fewer rows, teachers or columns."
        )
    promise = sys.modules.get("terrine_server.privacy")  # whose errors have a root of their own
    if promise is not None and isinstance(error, promise.ParameterError):
        return str(error)
    return None


def _extra(words: list[str]) -> str:
    """Return the extra that a command line needs."""
    if "--data-dir" in words:
        place = words.index("--data-dir")
        words = words[:place] + words[place + 2 :]
    typed = [word for word in words if word != "--json" and not word.startswith("--data-dir=")]
    extras = dict(_EXTRAS)
    for addon in addons().values():
        extras |= addon.extras
    for path in sorted(extras, key=len, reverse=True):  # of those that fit, the one that says most
        command, *more = path.split()
        if typed[:1] == [command] and {*more} <= {*typed[1:]}:
            return extras[path]
    return "server"


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
        errors.print(Text.assemble(("Error:", "bold red"), " ", as_typed(message)), soft_wrap=True)
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


def sentence(message: str) -> str:
    """End pydantic's message with a full stop; drop its prefix from our own messages."""
    message = message.removeprefix("Value error, ")
    return message if message.endswith((".", "?")) else f"{message}."


def _is_text(argument: str) -> bool:
    """Return whether an argument was UTF-8: Python turns other bytes into lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


# Of queries in a project of sums.
ALL_FREE = "any number, free: labels follow from what was released at first"


def explain_spending(mechanism: str) -> str:
    """Return why few answers of neighbours spend much, and further ones little; else nothing."""
    if mechanism != "neighbours":
        return ""
    return (
        ": what a person near every query so far has spent, at most. It grows fast at first, and "
        "stops at ε: who has spent it votes no more in this project"
    )
