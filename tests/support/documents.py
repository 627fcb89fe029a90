"""The repository's documents: pages with code, releases, and an example of every wire model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_DOCKER = re.compile(r"\bdocker compose ")
"""In commands, where a page has them with Docker, too."""


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of a page's blocks in these languages; "" is no language."""
    for language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            yield language, text


def lines(text: str) -> list[str]:
    """Return the lines of a shell block, continued ones joined, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [
        line for line in (part.partition(" #")[0].strip() for part in joined.split("\n")) if line
    ]


def section(page: Path, heading: str) -> str:
    """Return all shell blocks under a heading of a page, as one."""
    _, found, text = page.read_text().partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no heading {heading!r}"
    under = text.partition("\n## ")[0]
    return "".join(block for language, block in BLOCK.findall(under) if language == "bash")


REPOSITORY = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (?:\[?(\d+\.\d+\.\d+)\]? [-–] (\d{4}-\d\d-\d\d)|(Unreleased))$")


class ReleaseError(Exception):
    """What is wrong, what was expected, and what to do."""


def declared_version() -> str:
    """The version that pyproject.toml declares: the only place that says it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def check_changelog(text: str, version: str, tag: str | None) -> None:
    """Raise `ReleaseError` unless the changelog `text` covers `version`.

    Before its tag, a version may stand under "Unreleased". With the `tag`, which must be "v" and
    the version, it needs a dated section of its own, and nothing may be left under "Unreleased".
    """
    named: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            heading = HEADING.match(line)
            if not heading:
                raise ReleaseError(
                    f"CHANGELOG.md has the heading {line!r}; write '## 1.2.3 - 2027-01-31' or "
                    "'## Unreleased'"
                )
            lines = named.setdefault(heading[1] or heading[3], [])
        else:
            lines.append(line)
    numbers = [tuple(map(int, name.split("."))) for name in named if name != "Unreleased"]
    if numbers != sorted(numbers, reverse=True):
        raise ReleaseError("CHANGELOG.md has its versions out of order: write the newest first")
    if tag is None:
        if not {version, "Unreleased"} & named.keys():
            raise ReleaseError(f"CHANGELOG.md has neither 'Unreleased' nor {version}: add one")
        return
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag}, and pyproject.toml says {version}: the tag must be v{version}"
        )
    if version not in named:
        raise ReleaseError(
            f"CHANGELOG.md has no section for {version}: name 'Unreleased' '## {version} - DATE'"
        )
    if any(line.strip() for line in named.get("Unreleased", [])):
        raise ReleaseError(
            f"CHANGELOG.md still has lines under 'Unreleased': move them to {version}"
        )


def build(tree: Path, out: Path, **variables: str) -> dict[str, bytes]:
    """Build the sdist, and the wheel from it, with the installed hatchling; return them by name."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree)
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{tree} cannot be built:\n{done.stdout}\n{done.stderr}")
    return {file.name: file.read_bytes() for file in out.glob("terrine-*")}


def unpack_elsewhere(sdist: Path, directory: Path) -> Path:
    """Unpack `sdist` under `directory`, as of another day and closed to others; return the tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    for path in tree.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_234_567_890, 1_234_567_890))
    return tree


INPUT = {"shape": [28, 28], "dtype": "uint8", "low": 0.0, "high": 255.0}
ENSEMBLE = {
    "name": "digits",
    "protects": "one record, 100 of them",
    "units": 100,
    "manifest_sha256": "ab" * 32,
    "kind": "heads",
    "input": INPUT,
    "classes": ["zero", "one"],
    "teachers": 250,
    "available": True,
}
BUDGET: dict[str, Any] = {
    "project": "study",
    "status": "active",
    "epsilon": 1.0,
    "delta": 1e-5,
    "rule": {"name": "rdp", "order": 12.5},
    "budget": 2**62,
    "spent": 17,
    "delta_budget": 10**13,
    "delta_spent": 3,
    "epsilon_spent": 0.1,
    "protects": "one record, 100 of them",
    "charges": 2,
    "publications": [{"charge": 2, "queries": 1, "figure": 10**9}],
    "affordable": 40,
    "used_up": 0.4,
}
RESULT = {
    "outcome": "reinforced",
    "label": 3,
    "label_name": "cat",
    "charge": 9,
    "hash": "cd" * 32,
    "replayed": True,
    "counts": None,
}
COUNTED = RESULT | {"outcome": "answered", "counts": [-7, 3, 0, 41]}
PRICE = {"cost": 5, "delta": 1}
LOG = {"size": 9, "cosigned": {"a": "2026-01-02T03:04:05Z"}, "missing": ["b"]}
LOG_ENTRY = {
    "seq": 1,
    "created_at": "2026-01-02T03:04:05.000006Z",
    "actor": "token:0123456789abcdef",
    "request_id": "abc",
    "action": "project-paused",
    "subject": "study",
    "detail": {"status": "paused"},
    "hash": "ef" * 32,
}
CHARGE = {
    "project": "study",
    "seq": 1,
    "created_at": "2026-01-02T03:04:05.000006Z",
    "outcome": "abstained",
    "label": None,
    "figure": None,
    "cost": 5,
    "delta": 1,
    "mechanism": {"name": "lnmax", "gamma": 0.05},
    "event": {"event": "LaplaceNoisyMax", "gamma": 0.05},
    "query_digest": "cd" * 32,
    "hash": "ef" * 32,
}
TOKEN = {
    "id": "a1",
    "role": "student",
    "project": "study",
    "label": "Ward 7",
    "created_at": "2026-01-02T03:04:05Z",
    "expires_at": "2026-04-02T03:04:05Z",
    "revoked_at": None,
}
SPLIT = {"conversion": 9e-6, "stability": 0.0, "publication": 0.0, "sampler": 1e-8}
PUBLISHING = {"beta": 0.02, "sigma": 40.0, "schedule": [200, 400]}
CONSIDERED = {
    "rule": {"name": "gdp", "order": None},
    "answer_share": None,
    "answers": 900,
    "queries": 1000,
}
CHOICE = {"pass_rate": 0.7, "considered": [CONSIDERED]}
PROJECT: dict[str, Any] = {
    "name": "study",
    "status": "closed",
    "ensemble": ENSEMBLE,
    "mechanism": {"name": "gnmax", "sigma": 40.0},
    "epsilon": 1.0,
    "delta": 1e-5,
    "delta_split": SPLIT,
    "rule": {"name": "gdp", "order": None},
    "prices": {"answered": PRICE},
    "publishing": PUBLISHING | {"order": 10.0, "z": 4.9, "price": PRICE},
    "choice": CHOICE,
    "opened_at": "2026-01-02T03:04:05Z",
    "closed_at": "2026-01-03T03:04:05Z",
}
MECHANISMS: list[dict[str, Any]] = [
    {"name": "lnmax", "gamma": 0.05},
    {"name": "gnmax", "sigma": 40.0},
    {
        "name": "confident_gnmax",
        "threshold": 200,
        "sigma1": 150.0,
        "sigma2": 40.0,
        "answer_share": 0.5,
    },
    {
        "name": "interactive_gnmax",
        "threshold": 200,
        "sigma1": 150.0,
        "sigma2": 40.0,
        "confidence": 0.9,
    },
    {"name": "immutable", "c": 10, "gamma": 0.05, "sigma": None},
    {"name": "immutable", "c": 10, "gamma": None, "sigma": 40.0},
    {"name": "stable", "sigma": 40.0, "delta_per_query": 1e-9},
    {"name": "noisy_votes", "sigma": 40.0},
    {"name": "neighbours", "sigma": 272.0, "queries": 10_000, "norm": 2},
    {"name": "sums"},
]
EXAMPLES: dict[str, dict[str, Any]] = {
    "LNMaxSpec": MECHANISMS[0],
    "GNMaxSpec": MECHANISMS[1],
    "ConfidentGNMaxSpec": MECHANISMS[2],
    "InteractiveGNMaxSpec": MECHANISMS[3],
    "ImmutableSpec": MECHANISMS[4],
    "StableSpec": MECHANISMS[6],
    "NoisyVotesSpec": MECHANISMS[7],
    "NeighboursSpec": MECHANISMS[8],
    "SumsSpec": MECHANISMS[9],
    "LabelRequest": {"inputs": [[0.1, 2.0]], "probabilities": [[0.25, 0.75]]},
    "RowsRequest": {"rows": [{"age": 39, "job": "nurse", "smokes": None}], "probabilities": None},
    "LabelResult": COUNTED,
    "RuleInfo": {"name": "gdp", "order": None},
    "DeltaSplitInfo": SPLIT,
    "PriceInfo": PRICE,
    "PublicationInfo": BUDGET["publications"][0],
    "Budget": BUDGET,
    "LabelResponse": {
        "results": [RESULT, COUNTED],
        "noise_sigma": 4.0,
        "classes": ["no", "yes"],
        "notes": ["The rows: column job: 1 of 2 values are not in the schema."],
        "budget": BUDGET,
    },
    "UsedUp": {"used_up": [0.25, 1.0]},
    "InputSpec": INPUT,
    "EnsembleFacts": {
        key: value
        for key, value in ENSEMBLE.items()
        if key not in ("name", "protects", "units", "manifest_sha256", "available")
    },
    "EnsembleInfo": ENSEMBLE,
    "EnsembleRegister": {
        "name": "digits",
        "epsilon": 4.0,
        "delta": 1e-5,
        "rule": "rdp",
        "order": 12.5,
        "population": "patients",
        "disjoint": True,
    },
    "EnsembleAccount": ENSEMBLE
    | {
        "epsilon": 2.0,
        "delta": 1e-5,
        "rule": {"name": "gdp", "order": None},
        "cap": 10**12,
        "reserved": 10**11,
        "delta_cap": 10**12,
        "delta_reserved": 10**11,
        "population": "patients",
    },
    "ProjectOpen": {
        "name": "study",
        "ensemble": "digits",
        "mechanism": MECHANISMS[1],
        "epsilon": 1.0,
        "delta": 1e-5,
        "accounting": "data_dependent",
        "consensus": [{"agreement": 0.9, "share": 3.0}],
    },
    "ChoiceInfo": CHOICE,
    "ConsideredInfo": CONSIDERED,
    "ConsensusLevel": {"agreement": 0.9, "share": 3.0},
    "PublishingTerms": PROJECT["publishing"],
    "SecretSpend": {
        "secret": True,
        "project": "study",
        "queries": 40,
        "order": 10.0,
        "cost": 0.01,
        "smooth_sensitivity": 0.002,
    },
    "ProjectUpdate": {"status": "paused"},
    "ProjectInfo": PROJECT,
    "ProjectPage": {"items": [PROJECT], "next": "study"},
    "TokenCreate": {"role": "student", "project": "study", "label": "", "expires_in_days": 90.0},
    "TokenInfo": TOKEN,
    "TokenPage": {"items": [TOKEN], "next": None},
    "TokenCreated": TOKEN | {"token": "terrine_a1_secret"},
    "Charge": CHARGE,
    "LedgerPage": {"items": [CHARGE], "next": "1"},
    "LogState": LOG,
    "BudgetPage": {"items": [BUDGET], "next": None, "log": LOG},
    "LogEntry": LOG_ENTRY,
    "LogPage": {"items": [LOG_ENTRY], "next": None},
    "LogVerification": {"ok": True, "entries": 1, "head": "ef" * 32, "problems": []},
    "Ready": {"status": "ready", "log": LOG},
    "EntryReceipt": {"charge": 9, "index": 70},
    "ReceiptPage": {
        "leaf_key": "ab" * 32,
        "items": [{"charge": 9, "index": 70}],
        "next": "9",
    },
    "Verification": {
        "project": "study",
        "ok": False,
        "charges": 2,
        "head": "ef" * 32,
        "problems": ["entry 2: hash does not match"],
    },
}
