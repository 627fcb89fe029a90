"""A table of texts: by quickstart to a student, and by strings over HTTP and in Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from support.processes import SEED, Terrine
from support.servers import Machine, serving_process
from terrine_client import Client
from terrine_models.tables.loading import read_schema
from terrine_tables.encoding import encode_rows

WORDS = {
    "sun": ["warm", "summer", "beach", "sand", "light", "shade", "swim", "heat"],
    "snow": ["cold", "winter", "ice", "dark", "storm", "sledge", "frost", "skate"],
}
RARE = "zzyzx"
"""A word that stands in one private text alone."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine) -> Machine:
    """2,000 private reports, 600 public ones without labels, and 200 that test: as JSON lines, and
    the public ones as CSV."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    random = np.random.default_rng(0)

    def write(name: str, rows: int, more: str = "") -> None:
        lines = list[tuple[str, str]]()
        for label in random.choice([*WORDS], rows):
            other = "snow" if label == "sun" else "sun"
            words = [*random.choice(WORDS[label], 5), *random.choice(WORDS[other], 2)]
            lines.append((" ".join(random.permutation(words)), str(label)))
        lines[0] = (lines[0][0] + more, lines[0][1])
        if name.endswith(".csv"):
            Path(name).write_text("\n".join(["text", *(text for text, _ in lines), ""]))
            return
        rows_of = ({"text": text, "label": label} for text, label in lines)
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows_of))

    write("reports.jsonl", 2000, f" {RARE}")
    write("pool.csv", 600)
    write("own.jsonl", 200)
    return Machine(tmp_path / "data", f"sqlite:///{tmp_path / 'data' / 'terrine.sqlite'}", terrine)


def test_reports_are_learned_from_and_asked_as_strings(machine: Machine) -> None:
    given = ("--public", "pool.csv", "--label", "label", "--classes", "snow,sun")
    said = machine.run("quickstart", "reports.jsonl", *given, "--yes").fine
    token = re.search(r"TERRINE_TOKEN=(\S+)", said)
    assert token is not None
    schema = read_schema(Path("reports-schema.json"))
    assert schema.columns[0].role == "text"
    assert RARE not in said + Path("reports-schema.json").read_text()
    with serving_process(machine) as server:
        variables = {"TERRINE_URL": server.url, "TERRINE_TOKEN": token[1]}
        machine.run("student", "train", "pool.csv", "--held-out", "own.jsonl", **variables).fine  # noqa: B018
        report = json.loads(Path("student/report.json").read_text())
        assert report["accuracy"] > 0.85
        texts = Path("pool.csv").read_text().splitlines()[1:4]
        rows = [{"text": line} for line in texts]
        with Client(server.url, token[1]) as client:
            by_numbers = client.label(encode_rows(rows, schema)).names
        headers = {"Authorization": f"Bearer {token[1]}"}
        url = f"{server.url}/label"
        by_name = httpx.post(url, json={"rows": rows}, headers=headers)
        assert by_name.status_code == 200, by_name.text
        csv = "\n".join(["text", *(row["text"] for row in rows), ""])
        by_csv = httpx.post(url, content=csv, headers={**headers, "Content-Type": "text/csv"})
        assert by_csv.status_code == 200, by_csv.text
        results = by_name.json()["results"]
        assert results == by_csv.json()["results"]
        names = [("snow", "sun")[each["label"]] for each in results]
        assert names == by_numbers.tolist(), "by numbers, the same"
        assert all(each["source"] == "sums" for each in results), "paid for when it was opened"
        odd = [{"text": "s3cret \x00 " * 3000}, {"text": "\u202eשלום"}]
        answer = httpx.post(url, json={"rows": odd}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert "s3cret" not in answer.text
        for body, sent in {
            "no text": {"rows": [{"other": "s3cret"}]},
            "a list": {"rows": [{"text": ["s3cret"]}]},
        }.items():
            refused = httpx.post(url, json=sent, headers=headers)
            assert refused.status_code == 422, body
            assert "s3cret" not in refused.text
        for status, text in ((422, "\\ud800 s3cret"), (413, "s3cret " * 1_500_000)):
            body = f'{{"rows": [{{"text": "{text}"}}]}}'
            kind = {**headers, "Content-Type": "application/json"}
            refused = httpx.post(url, content=body, headers=kind)
            assert refused.status_code == status, refused.text
            assert "s3cret" not in refused.text
    log = "".join(path.read_text(errors="ignore") for path in machine.data.rglob("*.log"))
    assert "s3cret" not in log
