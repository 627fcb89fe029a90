"""Add-ons are found by their entry points, and what is left without one is complete."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import run_program
from support.wording import refuses
from terrine_models.addons import addons
from terrine_models.features.backbones import backbones
from terrine_models.storage.manifests import StoreError

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
ADDONS = sorted(PROJECT["entry-points"]["terrine.addons"])
COPIED = ("server", "client", "models", "migrations", "experiments", "tests", "benchmarks", "docs")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "LICENSE")
QUICK = (
    "tests/api/test_label.py",
    "tests/admin/test_screens.py",
    "tests/ledger/test_charging.py",
    "tests/models/test_teacher_kinds.py",
    "tests/api/test_commands.py",
)


def test_each_folder_is_an_add_on_with_a_page_tests_and_a_readme() -> None:
    folders = REPOSITORY / "server" / "terrine_addons"
    assert sorted(path.parent.name for path in folders.glob("*/__init__.py")) == ADDONS
    assert sorted(addons()) == ADDONS
    for name in ADDONS:
        assert 5 <= len((folders / name / "README.md").read_text().splitlines()) <= 15
        assert list((REPOSITORY / "tests" / "addons" / name).glob("test_*.py"))
        assert (REPOSITORY / "docs" / "addons" / f"{name}.md").is_file()


def test_without_an_add_on_what_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("terrine_models.addons.entry_points", lambda group: ())
    addons.cache_clear()
    try:
        assert addons() == {}
        with refuses(StoreError, "add-on", "backbone"):
            backbones()
    finally:
        addons.cache_clear()


WORDS_OF_THE_DOMAIN = {
    "audit": "what an auditor does, on a page of its own; mechanisms say how to audit them",
    "witness": "cosigns the transparency log (c2sp.org/tlog-witness), and is asked by every server",
    "onnx": "a format of files: of teachers in an ensemble, of backbones and of students",
}
"""What the core says for another reason than that an add-on has the name."""


def said_in_code(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the names and texts in a module, with their lines; no comment and no docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) not in documents:
            texts = (given for _, given in ast.iter_fields(node) if isinstance(given, str))
            yield from ((getattr(node, "lineno", 0), text) for text in texts)


def test_the_core_names_no_add_on() -> None:
    names = "|".join(set(ADDONS) - set(WORDS_OF_THE_DOMAIN))
    named = re.compile(rf"(?<![a-z])({names})(?![a-z])", re.IGNORECASE)
    core = [REPOSITORY / "server" / "terrine_server", REPOSITORY / "client", REPOSITORY / "models"]
    modules = [file for room in core for file in sorted(room.rglob("*.py"))]
    found = [
        f"{file.relative_to(REPOSITORY)}:{line}: {text[:80]!r}"
        for file in modules
        for line, text in said_in_code(file)
        if named.search(text)
    ]
    found += [str(page) for page in core[0].rglob("*.html") if named.search(page.read_text())]
    assert len(modules) > 100
    assert found == []


def tree_without(name: str, tree: Path) -> Path:
    """Copy the repository without an add-on: its folder, its tests, its page, its line."""
    for each in COPIED:
        shutil.copytree(
            REPOSITORY / each,
            tree / each,
            ignore=shutil.ignore_patterns("__pycache__", "*.webp", "*.png", "node_modules"),
        )
    for each in FILES:
        shutil.copy(REPOSITORY / each, tree / each)
    shutil.rmtree(tree / "server" / "terrine_addons" / name)
    shutil.rmtree(tree / "tests" / "addons" / name)
    (tree / "docs" / "addons" / f"{name}.md").unlink()
    project = tree / "pyproject.toml"
    kept = [
        line
        for line in project.read_text().splitlines(keepends=True)
        if f"terrine_addons.{name}" not in line
    ]
    project.write_text("".join(kept))
    return tree


LINT_IMPORTS = ("-c", "from importlinter.cli import lint_imports_command as lint; lint()")


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the tree, on the tree's own packages."""
    sources = [str(tree / each) for each in ("server", "client", "models", "experiments")]
    return run_program(
        sys.executable,
        *command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "MYPY_CACHE_DIR": ".mypy"},
    )


CORE_ALONE = """
import terrine_server.cli as cli, terrine_server.app, terrine_models.teachers.kinds
from terrine_models.addons import addons
print(cli.__file__, *addons())
"""


def code_alone(tree: Path) -> Path:
    """Copy what is imported."""
    for package in ("server", "client", "models", "experiments"):
        shutil.copytree(REPOSITORY / package, tree / package)  # with what is compiled
    return tree


def test_the_core_imports_without_any_add_on(tmp_path: Path) -> None:
    tree = code_alone(tmp_path / "tree")
    for name in ADDONS:
        shutil.rmtree(tree / "server" / "terrine_addons" / name)
    (tree / "core.py").write_text(CORE_ALONE)
    done = run(tree, "core.py")
    assert done.returncode == 0, done.stderr
    (where,) = done.stdout.split()
    assert Path(where).is_relative_to(tree)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ADDONS)
def test_what_is_left_without_an_add_on_lints_and_passes_its_tests(
    name: str, tmp_path: Path
) -> None:
    tree = tree_without(name, tmp_path / "tree")
    for command in (
        ("-m", "ruff", "check", "."),
        (
            "-m",
            "mypy",
            "server/terrine_server",
            "server/terrine_addons",
            "models",
            "client",
            "tests",
        ),
        LINT_IMPORTS,
        ("-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *QUICK),
    ):
        done = run(tree, *command)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-2000:]}"


def test_an_import_of_an_add_on_by_the_core_is_found_by_lint(tmp_path: Path) -> None:
    """The linter says nothing of packages that it was not told of."""
    tree = code_alone(tmp_path / "tree")
    shutil.copy(REPOSITORY / "pyproject.toml", tree)
    planted = tree / "server" / "terrine_server" / "views.py"
    planted.write_text(planted.read_text() + "\nimport terrine_addons.audit.evidence\n")
    done = run(tree, *LINT_IMPORTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "terrine_server.views -> terrine_addons.audit.evidence" in done.stdout
