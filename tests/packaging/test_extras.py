"""Each extra brings what its users need: all else that is installed is hidden from them here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from support.ledgers import CONFIDENT, answered, charge_one, open_ledger, open_project
from support.processes import run_program
from support.wording import holds
from terrine_models.students.models import Student

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
HIDE = """
import sys
hidden = frozenset(sys.argv.pop(1).split(","))
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""
COMMAND = HIDE + "import terrine_server.cli; terrine_server.cli.main()"
PREDICT_WITH_EACH = (
    HIDE
    + """
import terrine_server.cli
for directory in sys.argv[1:]:
    sys.argv = ["terrine", "student", "predict", f"{directory}/x.npy", "--student", directory]
    try:
        terrine_server.cli.main()
    except SystemExit as ended:
        assert not ended.code
"""
)


def brought(*extras: str) -> set[str]:
    """The distributions that an installation with these extras has, by normalised name."""
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    found, todo = {"terrine"}, [Requirement(each) for each in wanted]
    while todo:
        requirement = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        known = name in found
        found.add(name)
        try:
            further = requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        for each in map(Requirement, further):
            environments = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
            wanted_here = each.marker is None or any(map(each.marker.evaluate, environments))
            if wanted_here and (requirement.extras or not known):
                todo.append(each)
    return found


@cache
def modules() -> dict[str, set[str]]:
    """The distributions that bring each top-level module."""
    return {
        module: {re.sub(r"[-_.]+", "-", name).lower() for name in names}
        for module, names in packages_distributions().items()
    }


def hidden(*extras: str) -> str:
    """The top-level modules that such an installation lacks."""
    there = brought(*extras)
    return ",".join(sorted(module for module, names in modules().items() if not names & there))


def run(code: str, extras: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, hidden(*extras), *map(str, arguments)]
    return run_program(*command)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    project = open_project(ledger, 5, CONFIDENT)
    charge_one(ledger, project.id, [answered(1), answered(2)])
    written = tmp_path / "study.jsonl"
    written.write_text(
        "".join(json.dumps(line) + "\n" for line in ledger.exports.export_project("study"))
    )
    return written


@pytest.mark.parametrize(
    "program",
    [
        "from terrine_models.students.models import Student",
        "from pathlib import Path; from terrine_client.distill import distill; "
        "distill(None, [], Path('student'))",
        "from terrine_client.estimator import buy; buy(None, [])",
    ],
)
def test_a_student_without_its_extra_is_told_which(program: str) -> None:
    hide = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in ("safetensors", "scipy") else found(name, package)
)
"""
    done = run_program(sys.executable, "-c", f"{hide}\n{program}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    holds(last, "safetensors", "scipy", "student")
    assert "pip install '.[student]'" in last


def test_an_auditor_installs_no_pytorch_and_no_web_framework() -> None:
    heavy = {"torch", "fastapi", "starlette", "uvicorn", "scikit-learn", "matplotlib"}
    assert not brought("auditor") & heavy
    assert "torch" not in brought("student")
    assert {"torch", "fastapi"} <= brought("server")
    assert not brought() & {"scipy", "sqlalchemy", "cryptography", *heavy}


def test_an_auditor_finds_what_was_altered_in_an_export(export: Path) -> None:
    lines = export.read_text().splitlines()
    lines[1] = re.sub(r'"cost": \d+', '"cost": 1', lines[1])
    export.write_text("\n".join(lines) + "\n")
    altered = run(COMMAND, ("auditor",), "ledger", "verify", "--file", export)
    assert (altered.returncode, altered.stderr) == (1, ""), altered.stderr
    assert "entry 1: altered" in altered.stdout


@pytest.mark.nightly
def test_an_auditor_measures_the_mechanisms() -> None:
    done = run(COMMAND, ("auditor",), "audit", "mechanisms", "--quick", "--seed", "1")
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]


def test_an_image_has_all_that_any_module_imports() -> None:
    """As its build finds out, which no Docker engine need do here."""
    script = REPOSITORY / "docker" / "compile_imported.py"
    extras = ("server", "onnx", "oidc")
    done = run(f"{HIDE}exec({script.read_text()!r})", extras)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_student_s_program_encodes_rows_without_an_extra() -> None:
    """As `Client.label` does; only files need one, and its name is said."""
    code = (
        HIDE
        + """
from types import SimpleNamespace
import terrine_client
from terrine_client._labels import encode_columns
from terrine_protocol import Column, TableSchema
schema = TableSchema(columns=(
    Column(name="age", role="numeric", low=0, high=100),
    Column(name="ill", role="label", values=("no", "yes")),
))
terrine_client.Client("http://127.0.0.1:9", "terrine_x")
project = SimpleNamespace(ensemble=SimpleNamespace(encoding=schema))
for given in ([{"age": 50, "town": "Ulm"}], {"age": [50]}):
    assert encode_columns(given, project, False).tolist() == [[0.5]]
encode_columns("pool.csv", project, False)
"""
    )
    done = run(code, ())
    holds(done.stderr.splitlines()[-1], "DataError", "pyarrow", ".[arrow]")


def test_a_student_is_trained_and_used_without_pytorch(tmp_path: Path) -> None:
    """And says what it says where PyTorch is."""
    code = (
        HIDE
        + """
import sys
from pathlib import Path
import numpy as np
from terrine_models.data.arrays import InputSpec
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import asking_order
out = Path(sys.argv[1])
assert not {"torch", "sklearn"} & sys.modules.keys()
random = np.random.default_rng(0)
labels = np.arange(240) % 2
for shape in ((4,), (21, 20, 3)):
    x = random.integers(0, 99, (240, *shape), dtype=np.uint8)
    x[labels == 1, : shape[0] // 2] += 99
    spec = InputSpec(shape=shape, dtype="uint8", low=0, high=255)
    task = Task(x, spec, ("a", "b"))
    asking_order(x, spec, 0)
    for name, method in METHODS.items():
        if method.can_learn(task):
            student = method(Training()).fit(task, Answers.of_labels(labels, 2))
            student.save(out / f"{name}-{len(shape)}")
            np.savez(out / f"{name}-{len(shape)}" / "said.npz", x=x, y=student.probabilities(x))
print(len(list(out.iterdir())), "torch" in sys.modules)
"""
    )
    done = run(code, ("student",), tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "5 False\n"), done.stderr
    directories = [*tmp_path.iterdir()]
    for directory in directories:
        with np.load(directory / "said.npz") as said:
            here = Student.load(directory).probabilities(said["x"])
            np.testing.assert_allclose(here, said["y"], atol=1e-5)
            np.save(directory / "x.npy", said["x"][:5])
    told = run(PREDICT_WITH_EACH, ("student",), *directories)
    assert (told.returncode, told.stderr) == (0, ""), told.stderr
    assert len(told.stdout.splitlines()) == 6 * len(directories)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("--data-dir=data", "ledger", "verify", "--file", "x"), "auditor"),
        *(
            pytest.param(arguments, extra, marks=pytest.mark.nightly)
            for arguments, extra in (
                (("serve",), "server"),
                (("student", "--url", "http://127.0.0.1:9", "train", "pool.npy"), "student"),
                (("plan", "gnmax", "--teachers", "100"), "server"),
                (("--data-dir", "data", "token", "create", "--role", "auditor"), "server"),
                (("ledger", "show", "study"), "auditor"),
                (("ledger", "export"), "auditor"),
                (("audit", "ledger"), "auditor"),
                (("audit", "--quick"), "auditor"),
                (("audit", "student", "--quick"), "server"),
            )
        ),
    ],
)
def test_whoever_lacks_an_extra_is_told_a_command_that_works(
    arguments: tuple[str, ...], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(COMMAND, (), *arguments)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert f"pip install '.[{extra}]'" in said, done.stderr
    assert "Traceback" not in said
    after = run(COMMAND, (extra,), *arguments)
    assert "installed" not in after.stderr
    assert "Traceback" not in after.stderr


def test_no_hint_names_a_package_on_an_index() -> None:
    """It is on none yet."""
    for room in ("client", "models", "server"):
        for file in (REPOSITORY / room).rglob("*.py"):
            assert "pip install 'terrine" not in file.read_text(encoding="utf-8"), file
