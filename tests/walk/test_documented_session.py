"""README.md, docs/quickstart.md and docs/client.md as their readers follow them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import terrine_client
from support.data import DigitsEnsemble
from support.documents import BLOCK, ROOT, blocks, lines
from support.processes import SEED, Terrine
from support.servers import Machine, running_server, serving_process
from terrine_client import BudgetExhausted, Client

README, QUICKSTART, CLIENT = (
    ROOT / name for name in ("README.md", "docs/quickstart.md", "docs/client.md")
)
EXAMPLE = "https://labels.example.org"
NOT_RUN = {
    "pip install": "takes too long; tests/packaging builds the wheel and looks into it",
    "terrine quickstart": "asks, and needs a table; test_quickstart.py runs it",
    "TERRINE_URL=": "test_quickstart.py does what is printed",
    "terrine serve": "does not end; here it runs in a process of its own",
    "from terrine_tables.encoding import": "needs a table; test_default_way.py has some",
    "from terrine_models.data.images": "needs a folder of pictures; test_default_way.py has one",
    "from terrine_client.estimator import": "needs labelled data; tests/client/test_estimator.py",
    "client.label(frame)": "needs a table; tests/client/test_rows.py",
    "tar --create": "needs Docker; tests/docker/test_hospital.py runs such lines",
}
"""How a line, or a block in Python, begins, and why it is not run."""


def left_out(code: str) -> bool:
    return any(code.startswith(start) for start in NOT_RUN)


def run(program: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block in Python, which may await; return the names that it leaves."""
    compiled = compile(program, "documentation", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(compiled, CodeType)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)
    return names


def programs(page: Path) -> list[str]:
    return [text for _, text in blocks(page, "python")]


def test_what_is_left_out_is_in_the_documentation() -> None:
    shell = [line for _, text in blocks(QUICKSTART, "bash") for line in lines(text)]
    assert [line for line in shell if not left_out(line)] == []
    code = [*shell, *programs(README), *programs(CLIENT)]
    assert [start for start in NOT_RUN if not any(c.startswith(start) for c in code)] == []


# -------------------------------------------------------------------------------------- README


STAYS = "python3 docs/tutorials/stays.py"


def test_pate_over_rest_from_made_up_stays_to_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine
) -> None:
    """README's section, line by line; its curl is the reader's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERRINE_DATA_DIR")
    monkeypatch.setenv(SEED, "0")
    section = README.read_text().partition("\n## PATE over REST\n")[2].partition("\n## ")[0]
    (_, owner), (_, students) = BLOCK.findall(section)
    tokens: dict[str, str] = {}
    for line in lines(owner):
        if line == STAYS:
            script = ROOT / STAYS.removeprefix("python3 ")
            subprocess.run([sys.executable, script], check=True)
        elif made := re.fullmatch(r"(\w+)=\$\(terrine (.*)\)", line):
            tokens[made[1]] = terrine(*shlex.split(made[2])).fine.strip()
        elif not left_out(line):
            assert line.startswith("terrine "), line
            terrine(*shlex.split(line)[1:]).fine  # noqa: B018 - asserts
    immutable = terrine("token", "create", "--role", "student", "--project", "immutable").fine

    data = tmp_path / "terrine-data"
    machine = Machine(data, f"sqlite:///{data / 'terrine.sqlite'}", terrine)
    with serving_process(machine) as server:
        if shutil.which("curl") is None:
            pytest.skip("NO CURL on this machine: README's curl lines are not run.")

        def type_in() -> list[dict[str, Any]]:
            done = subprocess.run(
                'curl() { command curl --silent --show-error --fail-with-body "$@"; echo; }\n'
                + students.replace("http://127.0.0.1:8000", server.url),
                shell=True,
                executable="/bin/bash",
                env=os.environ | tokens,
                capture_output=True,
                text=True,
                check=False,
            )
            return [json.loads(line) for line in done.stdout.splitlines()]

        confident, interactive, budget, ledger = type_in()
        outcomes = [each["outcome"] for each in confident["results"]]
        assert set(outcomes) == {"answered", "abstained", "refused"}
        assert 580 <= outcomes.count("answered") <= 680, "README says about 630"
        assert interactive["results"][0]["outcome"] in ("answered", "abstained", "reinforced")
        assert budget["project"] == "confident"
        assert budget["charges"] == 2000 - outcomes.count("refused")
        assert budget["epsilon_spent"] == pytest.approx(2, abs=0.01)
        spent = {account["project"]: account["charges"] for account in ledger["items"]}
        assert spent == {"confident": budget["charges"], "immutable": 0, "interactive": 1}

        again, *_, after = type_in()
        labels = [(each["outcome"], each["label"]) for each in again["results"]]
        assert labels == [(each["outcome"], each["label"]) for each in confident["results"]]
        assert after == ledger, "asked twice, paid once"

        unseen = np.zeros((1, 9), np.float32)
        with Client(server.url, immutable.strip()) as client:
            assert client.label(unseen).answered.all()
        with Client(server.url, tokens["ADA"]) as client, pytest.raises(BudgetExhausted):
            client.label(unseen)
    verified = terrine("ledger", "verify", "all").fine
    assert re.search(r"^interactive: intact, 1 charge$", verified, re.MULTILINE), verified


# ---------------------------------------------------------------------------------- docs/client.md


@dataclass(frozen=True)
class Study:
    """A student's project of noisy votes on the digits, and an auditor."""

    url: str
    student: str
    auditor: str
    inputs: NDArray[np.uint8]


@pytest.fixture(scope="session")
def study(
    digits_ensemble: DigitsEnsemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Study]:
    directory = tmp_path_factory.mktemp("study")
    database = f"sqlite:///{directory / 'terrine.sqlite'}"
    with running_server(directory / "data", database, digits_ensemble) as server:
        server.open_project("study", {"name": "noisy_votes", "sigma": 20.0}, epsilon=20.0)
        yield Study(
            server.url, server.token(), server.token("auditor"), digits_ensemble.public[:30]
        )


@pytest.mark.parametrize(
    "program",
    [program for program in programs(CLIENT) if not left_out(program)],
    ids=lambda program: program.partition("\n")[0],
)
def test_a_program_of_the_client_page_runs(study: Study, program: str) -> None:
    x = study.inputs
    with Client(study.url, study.student) as client:
        names: dict[str, Any] = {
            **{name: getattr(terrine_client, name) for name in terrine_client.__all__},
            "np": np,
            "asyncio": asyncio,
            "model": LogisticRegression(max_iter=1000),
            "url": study.url,
            "token": study.student,
            "auditor_token": study.auditor,
            "client": client,
            "labels": client.label(x),
            "x": x,
            "a": x[:3],
            "b": x[3:],
        }
        run(program.replace(EXAMPLE, study.url), names)
