"""`make reference`: write the pages of every command, setting and problem, from the code.

python tests/support/reference_pages.py docs
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from terrine_protocol import PROBLEMS
from terrine_server.cli import command_line
from terrine_server.settings import Settings, Variables, settings_classes

COMMANDS = """# Commands

`terrine COMMAND --help` prints the same, with examples. Settings are environment variables:
[settings.md](settings.md). `make reference` writes this page.
"""
SETTINGS = """# Settings

Settings are environment variables. Secrets come from files only. A variable that is empty, or whose
name is nearly a setting's, is an error. `make reference` writes this page.

"""
TABLE = """| variable | default | meaning |
|---|---|---|
"""
ADDED = """
## Of add-ons
"""
PROBLEMS_PAGE = """# Problems

What `type` means in an error of the [HTTP API](api.md#problems). `GET /problems` says it, too.
`make reference` writes this page.

| type | status | meaning |
|---|---|---|
"""

Names = tuple[str, ...]
"""The words of a command, such as `terrine`, `project` and `open`."""


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its name in docs/."""
    return {
        "commands.md": commands_page(),
        "settings.md": settings_page(),
        "problems.md": problems_page(),
    }


def settings_page() -> str:
    """Return a table of the server's own settings, and one of those of each add-on."""

    def table(kind: type[Variables], known: Container[str] = ()) -> str:
        return TABLE + "".join(
            f"| `TERRINE_{name.upper()}` | {f'`{field.default}`' if field.default else ''} "
            f"| {field.description} |\n"
            for name, field in kind.model_fields.items()
            if name not in known
        )

    def added(kind: type[Variables]) -> str:
        known = Settings.model_fields if issubclass(kind, Settings) else ()
        return f"\n{' '.join((kind.__doc__ or '').split())}\n\n{table(kind, known)}"

    classes = [kind for kind in settings_classes() if kind is not Settings]
    return SETTINGS + table(Settings) + ADDED + "".join(map(added, classes))


def problems_page() -> str:
    """Return a table of every kind of problem: slug, HTTP status, meaning."""
    rows = [f"| `{slug}` | {kind.status} | {kind.meaning} |\n" for slug, kind in PROBLEMS.items()]
    return PROBLEMS_PAGE + "".join(rows)


def commands_page() -> str:
    """Return a section for each command that runs, under that of its group."""
    return COMMANDS + "".join(
        part for command, path in walk(command_line()) for part in section(command, path)
    )


def walk(command: Any, path: Names = ("terrine",)) -> Iterator[tuple[Any, Names]]:
    """Yield a command and all below it, in the order in which help lists them."""
    yield command, path
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from walk(below.load() if hasattr(below, "load") else below, (*path, name))


def section(command: Any, path: Names) -> Iterator[str]:
    """Yield the heading, the help and the options of one command."""
    context = command.context_class(command, info_name=" ".join(path), terminal_width=10_000)
    group = hasattr(command, "commands")
    if path != ("terrine",):
        yield f"\n{'##' if group or len(path) == 2 else '###'} {' '.join(path)}\n"
    arguments = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    if arguments and not group:
        usage = re.sub(r"\[(\[\w+\])\]", r"\1", " ".join([*path, *arguments]))
        yield f"\n`{usage}`\n"
    yield f"\n{markdown((command.help or '').partition('[bold]Example')[0])}\n"
    options = [param for param in command.params if not param.name.endswith("_completion")]
    records = [record for param in options if (record := param.get_help_record(context))]
    for number, (name, said) in enumerate(records):
        about, limits = said, ""
        if said.endswith("]"):  # such as [default: 1; 1<=x<=64]
            about, _, limits = said.removesuffix("]").rpartition("[")
            limits = f" (`{limits}`)"
        yield "" if number else "\n"
        yield f"- `{name.replace(' range>', '>')}`: {markdown(about)}{limits}\n"


def markdown(text: str) -> str:
    """Return help as Markdown that shows it: paragraphs of one line, names and options as code."""
    text = re.sub(r"\[bold\](\w+)\[/\w*\]", r"`\1`", text.strip())
    names = r"(`[^`]*`|(?<![\w/])--[\w-]+|\w+_[\w:=,.]*\w|\[[^\]]*\])"
    return "\n\n".join(
        "".join(
            f"`{part}`" if re.fullmatch(names, part) and part[0] != "`" else part
            for part in re.split(names, " ".join(paragraph.split()))
        )
        for paragraph in re.split(r"\n\s*\n", text)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
