"""Add-ons are found by their entry points, and what is left without one is complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.wording import refuses
from terrine_models.addons import addons
from terrine_models.features.maps import backbones
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
        with refuses(StoreError, "add-on", "onnx"):
            backbones()
    finally:
        addons.cache_clear()


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
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "MYPY_CACHE_DIR": ".mypy"},
        capture_output=True,
        text=True,
        check=False,
    )


CORE_ALONE = """
import terrine_server.cli as cli, terrine_server.app, terrine_models.teachers.kinds
from terrine_models.addons import addons
print(cli.__file__, *addons())
"""


@pytest.mark.parametrize("name", ADDONS)
def test_what_is_left_without_an_add_on_imports(name: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for package in ("server", "client", "models"):
        shutil.copytree(
            REPOSITORY / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.rmtree(tree / "server" / "terrine_addons" / name)
    (tree / "core.py").write_text(CORE_ALONE)
    done = run(tree, "core.py")
    assert done.returncode == 0, done.stderr
    where, *found = done.stdout.split()
    assert Path(where).is_relative_to(tree)
    assert found == [each for each in ADDONS if each != name]


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
    tree = tmp_path / "tree"
    for package in ("server", "client", "models", "experiments"):
        shutil.copytree(
            REPOSITORY / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", tree)
    planted = tree / "server" / "terrine_server" / "views.py"
    planted.write_text(planted.read_text() + "\nimport terrine_addons.audit.evidence\n")
    done = run(tree, *LINT_IMPORTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "terrine_server.views -> terrine_addons.audit.evidence" in done.stdout
