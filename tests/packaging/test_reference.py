"""The pages of commands, settings and problems are what the code says today."""

from __future__ import annotations

import pytest

from support.documents import REPOSITORY
from support.reference_pages import pages, walk
from terrine_server.cli import CommandGroup, LazyCommand, command_line, list_commands
from terrine_server.settings import variable_names


@pytest.mark.parametrize("name", ["commands.md", "settings.md", "problems.md"])
def test_the_page_is_current(name: str) -> None:
    written = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    assert written == pages()[name], "run `make reference`"


@pytest.mark.parametrize("path", list_commands())
def test_help_lists_a_command_by_the_line_that_it_begins_with(path: str) -> None:
    listed = LazyCommand(path, *list_commands()[path])
    command = listed.load()
    if not isinstance(command, CommandGroup):
        line = (command.help or "").partition("\n\n")[0]
        assert " ".join(line.split()) == listed.help


def test_every_command_option_and_setting_is_on_its_page() -> None:
    commands, settings = pages()["commands.md"], pages()["settings.md"]
    for command, path in walk(command_line()):
        assert path == ("terrine",) or f"# {' '.join(path)}\n" in commands
        for option in command.params:
            if option.opts[0].startswith("--") and not option.name.endswith("_completion"):
                assert f"\n- `{option.opts[0]}" in commands
    for name in variable_names():
        assert f"\n| `{name}` | " in settings
