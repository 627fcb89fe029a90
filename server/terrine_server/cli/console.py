"""What commands share: console, ledger, whole files, and errors that a person can act on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from terrine_server.ledger import Ledger

console = Console()
errors = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

KNOWN = (
    ("terrine_server.errors", "TerrineError"),
    ("terrine_server.privacy", "ParameterError"),
    ("terrine_models.store", "StoreError"),
    ("terrine_models.data", "DataError"),
    ("terrine_models.teachers", "TrainingError"),
    ("terrine_server.owner.tokens", "SecretKeyError"),
    ("terrine_server.ledger.anchors", "AnchorError"),
    ("terrine_server.ledger.verifying.archive", "ArchiveError"),
    ("terrine_client.errors", "TerrineError"),
)
"""Errors whose text was written for the user. Looked up only where already imported."""


class CommandError(Exception):
    """Ends a command: the text says what is wrong and what to do."""


def fail(message: str) -> NoReturn:
    """End the command with `message` on stderr and exit code 1."""
    raise CommandError(message)


def consensus_levels(text: str) -> list[tuple[float, float]]:
    """Return the levels of C[:SHARE],… as pairs: the share that agrees, and of how many queries."""
    try:
        parts = [part.partition(":") for part in text.split(",")]
        return [(float(agreement), float(share or 1)) for agreement, _, share in parts]
    except ValueError:
        fail(f"--consensus takes numbers such as 0.9 or 0.95:6,0.8:3,0.5:1; not {text!r}.")


def opened_ledger() -> Ledger:
    """Return the ledger that the settings name. Raises SchemaMismatch, DatabaseUnavailable."""
    from terrine_server.ledger import check_schema, connect
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    settings = Settings()
    check_schema(connect(settings.database, settings.database_password()))
    return open_ledger(settings)


@contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name only when it is complete."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    partial = output.with_name(f"{output.name}.partial")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            yield file
        os.replace(partial, output)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}.")
    finally:
        partial.unlink(missing_ok=True)


def print_json(value: object) -> None:
    """Write a pydantic model, or plain values and models within lists and dicts, to stdout."""
    from pydantic_core import to_json

    typer.echo(to_json(value, indent=2).decode())


def explain(error: BaseException) -> str | None:
    """Return what to tell the user about `error`, or None when it is a defect of ours."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, CommandError | OSError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        extra = "student" if sys.argv[1:2] == ["student"] else "server"
        if not package.startswith("terrine"):
            return (
                f"{package} is not installed. This command needs the {extra} extra: "
                f"`pip install 'terrine[{extra}]'`"
            )
    for module, name in KNOWN:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return str(error)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        return "\n".join(
            f"{'.'.join(map(str, item['loc'])) or error.title}: {_sentence(item['msg'])}"
            for item in error.errors(include_url=False, include_input=False)
        )
    return None


def run(command: Callable[[], Any]) -> NoReturn:
    """Run `command`; known errors become one line on stderr and exit code 1."""
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
    except Exception as error:
        message = explain(error)
        if message is None:
            if os.environ.get("TERRINE_DEBUG"):
                raise
            message = (
                f"A defect in Terrine: {type(error).__name__}: {error}. "
                "Set TERRINE_DEBUG=1 to see where, and please report it."
            )
        errors.print(Text.assemble(("Error:", "bold red"), " ", message), soft_wrap=True)
        sys.exit(1)
    sys.exit(0)


def _sentence(message: str) -> str:
    """What pydantic says, closed with a full stop; texts of our own come without its prefix."""
    message = message.removeprefix("Value error, ")
    return message if message.endswith((".", "?")) else f"{message}."


def _is_text(argument: str) -> bool:
    """Whether the bytes of an argument were text; Python passes others on as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)
