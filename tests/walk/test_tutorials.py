"""The tutorials, and docs/ledger.md, as their readers follow them, from an empty directory on.

`make notebooks` runs this with --write-notebooks, which writes the outputs into the notebook.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.documents import BLOCK, IN_DOCKER, ROOT, lines
from support.processes import SEED, Terrine
from support.servers import Machine, serving_process

nbformat = pytest.importorskip("nbformat", reason="NO NBFORMAT: install the extra `dev`.")
nbclient = pytest.importorskip("nbclient", reason="NO NBCLIENT: install the extra `dev`.")

TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOK = TUTORIALS / "student.ipynb"
LEDGER = ROOT / "docs" / "ledger.md"
MAX_BYTES = 200_000
NOT_RUN = {
    "pip install": "takes too long; tests/packaging installs the wheel",
    "terrine serve": "does not end; here it runs in a process of its own",
    "export": "names a server and a token: here the test does",
    "jupyter lab": "does not end; here the cells are run without it",
    "terrine audit": "takes half a minute; tests/addons/audit runs it",
    "terrine ledger seal": "needs another key; tests/ledger/test_sealing.py has one",
    "psql": "needs PostgreSQL; tests/ledger/test_roles.py has one",
    "terrine init --service-role": "the same",
}
"""How a line of a shell block begins, and why it is not run."""
PRINTED = {
    "`patient_id` was recognised": r"patient_id +│ group",
    "It says how many stays a teacher sees": r"your eyes only: .* the median 20",
    "The plan says what ε = 2 buys": r"ε = 2, .* buys[\s\S]*each of 2,000 rows",
    "prints the command that opens the project": r"open .*noisy_votes:sigma=127 --epsilon 2",
    "Each is shown once": r"^terrine_\S+[\s\S]*^terrine_\S+",
    "names the entry; exit code 1": r"\bentry 10\b",
}
"""What the pages of hospital and auditor say that is printed, and what is."""
NOT_PRINTED = (
    "Column names, ranges and categories",
    "says what an ε means",
    "shows it",
    "say the tenth",
    "can show that",
    "if the log says that",
)
"""Parts of sentences with the same verbs about something else."""
SAYING = re.compile(r"\b(says?|prints?|printed|warns?|names? the|shows?|shown|recognised)\b")
FIGURES = re.compile(r" *\d[\d.,]*")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine) -> Machine:
    """An empty directory with the files of the tutorials, where nothing is set up.

    Servers that start here draw the same noise each time.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    for file in (*TUTORIALS.glob("*.py"), *(ROOT / "docs").glob("check_*.py")):
        shutil.copy(file, tmp_path)
    shutil.copytree(TUTORIALS, tmp_path / "docs" / "tutorials")
    data = tmp_path / "data"
    return Machine(data, f"sqlite:///{data / 'terrine.sqlite'}", terrine)


def test_what_is_left_out_is_in_the_tutorials() -> None:
    pages = [*TUTORIALS.glob("*.md"), NOTEBOOK, LEDGER]
    text = "\n".join(page.read_text() for page in pages)
    assert [start for start in NOT_RUN if start not in text] == []


# ------------------------------------------------------------------------------- the student


@pytest.mark.nightly
def test_the_notebook_runs_and_shows_what_it_says(
    request: pytest.FixtureRequest, machine: Machine
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [structure(cell) for cell in notebook.cells]
    page = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    (token,) = tokens(follow(page, machine.run))
    with serving_process(machine) as server:
        execute(notebook, TERRINE_URL=server.url, TERRINE_TOKEN=token)
    if request.config.getoption("--write-notebooks", default=False):
        nbformat.write(notebook, NOTEBOOK)
    else:
        assert [structure(cell) for cell in notebook.cells] == shown, "run `make notebooks`"
    assert NOTEBOOK.stat().st_size < MAX_BYTES
    if shutil.which("openssl") is None:
        pytest.skip("NO OPENSSL on this machine: docs/ledger.md is not followed on the study.")
    said = follow(LEDGER.read_text().replace("$(date +%F)", "2026-01-31"), machine.run)
    assert said.count("intact") >= 2


def execute(notebook: Any, **variables: str) -> None:
    """Run all cells in a kernel in this directory; their outputs replace those in `notebook`."""
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # a busy kernel sends what a cell prints in several parts
    )
    client.execute(env=os.environ | variables)
    notebook.metadata.language_info = {"name": "python"}  # without the kernel's version


def structure(cell: Any) -> list[Any]:
    """A cell's outputs: text without its figures, and which kinds of picture."""
    found: list[Any] = []
    for output in cell.get("outputs", []):
        assert output.output_type != "error"
        if output.output_type == "stream":
            assert output.name == "stdout", output.text
            found.append([FIGURES.sub(" 0", line) for line in output.text.splitlines()])
        else:
            found.append(sorted(output.data))
    return found


# -------------------------------------------------------------------- the hospital and its auditor


@pytest.mark.nightly
def test_an_auditor_checks_what_the_hospital_sold(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital, auditor = ((TUTORIALS / f"{name}.md").read_text() for name in ("hospital", "auditor"))
    opened, weekly = hospital.split("## Once a week")
    said = follow(opened, machine.run)
    student, reader = tokens(said)
    (key,) = re.findall(r"^log \S+", said, re.MULTILINE)
    Path("policy").write_text(f"{key}\nquorum none\n")
    assert machine.wrong() == []
    with serving_process(machine) as server:
        buys = {"TERRINE_URL": server.url, "TERRINE_TOKEN": student}
        label = ("student", "label", "pool.csv", "--out", "labels.npz")
        assert "2000 answered" in machine.run(*label, **buys).fine
        follow(weekly, machine.run)
        monkeypatch.setenv("TERRINE_URL", server.url)
        monkeypatch.setenv("TERRINE_TOKEN", reader)
        said += follow(auditor, machine.run)
    prose = " ".join(BLOCK.sub("", f"{hospital}\n{auditor}").split()) + hospital + auditor
    for words, printed in PRINTED.items():
        assert words in prose, "say no more than the pages do"
        assert re.search(printed, said, re.MULTILINE), f"{words}: {said}"


def test_what_tutorials_say_is_printed_is_looked_for() -> None:
    for name in ("hospital", "auditor"):
        prose = " ".join(BLOCK.sub("", (TUTORIALS / f"{name}.md").read_text()).split())
        for sentence in re.split(r"(?<=[.:?]) ", prose):
            known = any(words in sentence for words in (*PRINTED, *NOT_PRINTED))
            assert known or not SAYING.search(sentence), f"nothing checks: {sentence}"


def follow(page: str, terrine: Terrine) -> str:
    """Run a page's blocks in their order; return what `terrine` printed.

    Whatever is done with the file that was altered by hand must be refused. What is the same with
    Docker, tests/docker/test_hospital.py runs.
    """
    said = ""
    for language, text in BLOCK.findall(page):
        if language == "python":
            exec(compile(text, "tutorial", "exec"), {})
        for line in lines(text) if language == "bash" and not IN_DOCKER.search(text) else []:
            if line.startswith(tuple(NOT_RUN)):
                continue
            code = 1 if re.search(r" altered\.jsonl", line) and ">" not in line else 0
            if line.startswith("terrine "):
                done = terrine(*shlex.split(line)[1:])
                assert done.code == code, (line, done)
                said += f"{done.err}{done.out}"
            else:
                command = re.sub(r"^python3? ", f"{sys.executable} ", line)
                ran = subprocess.run(
                    command, shell=True, check=False, capture_output=True, text=True
                )
                assert ran.returncode == code, (line, ran)
                said += ran.stdout
    return said


def tokens(said: str) -> list[str]:
    return re.findall(r"^terrine_\S+", said, re.MULTILINE)
