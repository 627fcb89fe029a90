"""The distribution as users get it: from the sdist, alike everywhere, installed from the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from support.documents import REPOSITORY, build, declared_version, unpack_elsewhere
from support.processes import run_program

PACKAGES = (
    "terrine_addons",
    "terrine_client",
    "terrine_models",
    "terrine_protocol",
    "terrine_server",
    "terrine_tables",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `command` outside the repository, so that nothing is imported from it by accident."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    return run_program(*[str(part) for part in command], cwd=Path(sys.prefix), env=environment)


def succeed(*command: str | Path, **variables: str) -> str:
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that was built from it, not from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    build(REPOSITORY, out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("terrine-*.whl")
    return built


@pytest.mark.nightly
def test_whoever_builds_gets_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    first = {file.name: file.read_bytes() for file in dist.iterdir()}
    (sdist,) = dist.glob("terrine-*.tar.gz")
    tree = unpack_elsewhere(sdist, tmp_path / "elsewhere")
    again = build(tree, tmp_path / "dist", TZ="Pacific/Auckland", PYTHONHASHSEED="7", HOME="/")
    assert len(first) == 2
    assert {name: len(data) for name, data in first.items()} == {
        name: len(data) for name, data in again.items()
    }
    assert first == again


def test_the_wheel_holds_code_types_migrations_and_licence_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "terrine_models/tables/words.toml" in names
    assert "terrine_server/migrations/env.py" in names
    assert any(name.startswith("terrine_server/migrations/versions/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


@pytest.mark.nightly
def test_migrations_run_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = "import terrine_server.cli as cli; print(cli.__file__, flush=True); cli.main()"
    said = succeed(
        sys.executable,
        "-c",
        program,
        "init",
        PYTHONPATH=str(tmp_path / "site"),
        TERRINE_DATA_DIR=str(tmp_path / "data"),
    )
    assert str(tmp_path / "site") in said
    assert (tmp_path / "data" / "terrine.sqlite").stat().st_size > 0


@pytest.mark.nightly
def test_a_student_installs_neither_torch_nor_a_server(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    binaries = tmp_path / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    succeed(*pip, "install", "--quiet", wheel)

    installed = succeed(*pip, "list", "--format=freeze").lower()
    for heavy in ("torch", "fastapi", "sqlalchemy", "alembic", "scipy", "scikit-learn", "uvicorn"):
        assert f"\n{heavy}==" not in f"\n{installed}"

    succeed(binaries / "python", "-c", "from terrine_client import AsyncClient, Client")
    assert "project" in succeed(binaries / "terrine", "--help")
    assert succeed(binaries / "terrine", "--version").split()[-1] == declared_version()

    refused = run(binaries / "terrine", "serve", TERRINE_DATA_DIR=str(tmp_path / "data"))
    assert refused.returncode == 1
    assert "pip install '.[server]'" in refused.stderr
    assert "Traceback" not in refused.stderr
