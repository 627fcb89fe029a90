"""`docs/architecture.md` names files and functions that exist."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from pathlib import Path

import pytest

from support.processes import run_program
from terrine_server.privacy.mechanisms.immutable import Immutable
from terrine_server.privacy.mechanisms.lnmax import LNMax
from terrine_server.privacy.mechanisms.stable import StableArgmax

REPOSITORY = Path(__file__).resolve().parents[2]
SERVER = REPOSITORY / "server" / "terrine_server"
PRIVACY = SERVER / "privacy"
PLAN = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
STEPS = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PLAN)))
NAMED = sorted(set(re.findall(r"`(\w+)`\s(?:in|of)\s`([\w/]+\.py)`", PLAN)))
FILES = sorted(set(re.findall(r"`([\w/]+/[\w/]+\.py)`", PLAN)))
MOST_LINES_OF_THE_PROMISE = 4_900


def where(path: str) -> Path:
    roots = (SERVER, SERVER.parent / "terrine_addons", REPOSITORY, REPOSITORY / "client", PRIVACY)
    found = [root / path for root in roots if (root / path).is_file()]
    assert found, f"docs/architecture.md names {path}, which is not there"
    return found[0]


def defined(path: Path) -> set[str]:
    """Functions, classes, methods and assigned names of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_the_two_walks_are_described() -> None:
    assert len(STEPS) > 30


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_every_step_exists(path: str, name: str) -> None:
    assert name in defined(where(path))


@pytest.mark.parametrize(("name", "path"), NAMED)
def test_every_name_is_in_the_file_that_is_said(name: str, path: str) -> None:
    assert name in defined(where(path))


@pytest.mark.parametrize("path", [path for path in FILES if path.islower()])
def test_every_file_exists(path: str) -> None:
    where(path)


def test_the_privacy_critical_code_can_be_read_in_a_day() -> None:
    lines = sum(len(file.read_text().splitlines()) for file in PRIVACY.rglob("*.py"))
    assert lines <= MOST_LINES_OF_THE_PROMISE


def test_noise_is_drawn_in_one_module() -> None:
    drawn = re.compile(r"\.sample\(|\bentropy\(")
    assert [f for f in PRIVACY.rglob("*.py") if drawn.search(f.read_text(encoding="utf-8"))] == [
        PRIVACY / "noise.py"
    ]


@pytest.mark.parametrize("kind", [LNMax, Immutable, StableArgmax], ids=lambda kind: kind.name)
def test_a_mechanism_that_no_default_chooses_is_named_in_three_files(kind: type) -> None:
    """Its own, the registry, and the words of the wire: to remove it is to remove these."""
    name = vars(kind)["name"]
    named = re.compile(rf'\b{kind.__name__}\b|(?<!kind=)"{name}"')  # a sort has a kind, too
    rooms = (SERVER, SERVER.parent / "terrine_addons", REPOSITORY / "client", REPOSITORY / "models")
    found = {
        file
        for room in rooms
        for file in room.rglob("*.py")
        if named.search(file.read_text(encoding="utf-8"))
    }
    words = REPOSITORY / "client" / "terrine_protocol" / "mechanisms.py"
    home = PRIVACY / "mechanisms"
    assert found == {home / f"{name}.py", home / "__init__.py", words}


def test_every_file_of_the_promise_is_one_that_answers_depend_on() -> None:
    code = "import terrine_server.labeling.pipeline, sys; print('\\n'.join(sys.modules))"
    done = run_program(sys.executable, "-c", code, check=True)
    modules = {file.relative_to(SERVER.parent) for file in PRIVACY.rglob("*.py")}
    names = {".".join(m.with_suffix("").parts).removesuffix(".__init__") for m in modules}
    assert names - set(done.stdout.split()) == set()
    assert "terrine_server.planning" not in done.stdout


CAUGHT = {
    "_NeedTile": "in the client's reading of tiles",
    "StaleRecord": "by the ledger, which charges again",
    "InferenceError": "where owners' servers and the service read each other",
    "ReplyTooLarge": "where an owner's reply is read",
}
"""Exceptions that nobody outside sees, and where they are caught."""


@pytest.mark.parametrize("room", ["client", "models", "server"])
def test_an_error_that_a_user_may_see_has_the_root_that_commands_print(room: str) -> None:
    """All others are called a bug."""
    exceptions = {
        name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    roots = {
        node.name
        for file in (REPOSITORY / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and node.bases
        and all(getattr(base, "id", "") in exceptions for base in node.bases)
    }
    assert roots - CAUGHT.keys() <= {"TerrineError", "ParameterError"}
