"""Every `terrine` command in the documentation exists as written, and every example compiles.

What commands print and do is tested elsewhere: docs/api.md by tests/api, docs/choosing.md by
tests/plan, docs/student.md's table here, docs/privacy by tests/privacy.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.documents import ROOT, blocks
from terrine_server.cli import command_line

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACEHOLDER = re.compile(r"[<…]|\[.*\]|\.\.\.")


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `terrine` command in a page's shell blocks."""
    for _, text in blocks(page, "", "bash", "sh", "console", "text"):
        for line in re.sub(r"\$\([^)]*\)", "X", text.replace("\\\n", " ")).splitlines():
            words = line.removeprefix("$ ").partition(" #")[0].strip()
            words = re.split(r" [|>&<] ?| >> ", words)[0]
            found = re.match(r"(?:\S*/)?terrine (.*)|docker compose .*\bserver (.*)", words)
            if found is None or PLACEHOLDER.search(words):
                continue
            arguments = shlex.split(found[1] or found[2])
            yield arguments[1:] if arguments[:1] == ["terrine"] else arguments


CASES = [(page, arguments) for page in PAGES for arguments in commands(page)]


def parse(command: Any, name: str, arguments: list[str]) -> None:
    """Parse as the command line does, without running anything. Raises click's UsageError."""
    context = command.make_context(name, list(arguments))
    while hasattr(command, "resolve_command"):  # a group; typer may bring a click of its own
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)


def test_there_are_commands_to_check() -> None:
    assert len(CASES) > 60


@pytest.mark.parametrize(
    ("page", "arguments"),
    CASES,
    ids=[f"{page.name}: {' '.join(arguments)}"[:100] for page, arguments in CASES],
)
def test_a_documented_command_is_one(
    monkeypatch: pytest.MonkeyPatch, page: Path, arguments: list[str]
) -> None:
    monkeypatch.setenv("TERRINE_URL", "https://labels.example.org")  # as the pages say
    parse(command_line(), "terrine", arguments)


@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page, "python"))], ids=str)
def test_a_documented_program_compiles_and_its_imports_exist(page: Path) -> None:
    for _, text in blocks(page, "python"):
        if text.startswith(">>>"):
            continue  # a doctest
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and "terrine" in node.module:
                module = importlib.import_module(node.module)
                assert [a.name for a in node.names if not hasattr(module, a.name)] == []


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    for wrong in (
        ["ensemble", "trian"],
        ["plan", "gnmax", "--teecher", "3"],
        ["ensemble", "train"],
    ):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parse(command_line(), "terrine", wrong)
