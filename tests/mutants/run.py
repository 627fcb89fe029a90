"""`make mutants`: alter the code that keeps the promise, one place at a time; does a test notice?

The mutation tester mutmut wants all sources under `src/`, so they are copied to `.mutants/` first.
What is altered, and which tests run, is under `[tool.mutmut]` in pyproject.toml. Arguments are
names of mutants such as `terrine_server.privacy.budget.*`; `--sample 150` runs so many of them,
chosen at random, always the same ones. Only the modules that the names are of are altered. What
survives the quick tests, or makes them run out of time, then meets the slow ones that reach it
(`SLOW`), PostgreSQL's among them. Survivors are listed at the end; README.md beside it has those of
the last run, each with its reason.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / ".mutants"
PACKAGES = (
    "server/terrine_server",
    "server/terrine_addons",
    "client/terrine_client",
    "client/terrine_protocol",
    "client/terrine_tables",
    "models/terrine_models",
)
BESIDE = ("tests", "benchmarks", "docs", "README.md", "Makefile")
KILLED = {"killed", "caught by type check"}
"""Not "timeout": a test that takes long on a busy machine has noticed nothing."""
FAILED, INTERRUPTED = 1, 2
"""Exit codes of pytest: a test failed; the tests could not even be imported."""
SLOW = {
    "terrine_server.ledger.charging": "ledger/test_charging.py ledger/test_between.py "
    "ledger/test_groups.py ledger/test_publishing.py "
    "-k 'postgresql or test_publishing'",
    "terrine_server.ledger": "ledger/test_tampering.py ledger/test_between.py "
    "-k 'not postgresql and not test_no_value'",
    **dict.fromkeys(
        (f"terrine_server.privacy.{name}" for name in ("budget", "rules", "prices", "allowance")),
        "privacy/test_terms.py privacy/test_publishing_terms.py ledger/test_publishing.py "
        "-k 'not postgresql'",
    ),
    "terrine_server.privacy.published": "ledger/test_publishing.py "
    "privacy_data_dependent -k 'not postgresql'",
    "terrine_server.privacy": "ledger/test_publishing.py addons/audit/test_ledger_audit.py "
    "-k 'not postgresql'",
    "terrine_server.labeling": "ledger/test_publishing.py api/test_queueing.py -k 'not postgresql'",
}
"""Tests for the survivors of a module; the first name that fits counts."""
LONGEST = 120
FEW = "terrine_server.privacy.numbers.*"
"""Mutants that take little time: mutmut names all of them once it has run some."""
ALTERED = re.compile(r"^only_mutate = \[\n(.*?)^\]\n", re.MULTILINE | re.DOTALL)
"""In pyproject.toml: the patterns of the files that are altered."""
SEED = 8


def copy(patterns: Sequence[str]) -> None:
    """Lay the sources out as mutmut wants them; results of an earlier run of these stay."""
    for name in PACKAGES:
        fresh(REPOSITORY / name, WORK / "src" / Path(name).name)
    fresh(REPOSITORY / "migrations", WORK / "src" / "terrine_server" / "migrations")
    for name in BESIDE:
        fresh(REPOSITORY / name, WORK / name)
    settings = WORK / "pyproject.toml"
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(alter_only(patterns or ["*"]))
    if settings.read_text() != before:  # mutmut takes what it left unaltered for altered
        shutil.rmtree(WORK / "mutants", ignore_errors=True)
    # Which test reaches what is recorded anew: mutmut fails to add to a record of other tests.
    (WORK / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)


def alter_only(patterns: Sequence[str]) -> str:
    """Return the project's settings, of which mutmut alters the modules of these mutants alone."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    altered = tomllib.loads(text)["tool"]["mutmut"]["only_mutate"]
    files = [path.relative_to(WORK).as_posix() for path in sorted(WORK.glob("src/**/*.py"))]
    files = [file for file in files if any(fnmatch(file, pattern) for pattern in altered)]
    wanted = [file for file in files if of(file, patterns)]
    if not wanted:
        raise SystemExit(f"{patterns}: of no module that is altered; see [tool.mutmut]")
    lines = "".join(f'    "{file}",\n' for file in wanted)
    return ALTERED.sub(f"only_mutate = [\n{lines}]\n", text)


def of(file: str, patterns: Sequence[str]) -> bool:
    """Return whether one of these names may be of a mutant of this file."""
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return any(fnmatch(f"{module}.x", p) or p.startswith(f"{module}.") for p in patterns)


def fresh(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copy2(source, target)
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def mutmut(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mutmut", *arguments]
    captured = arguments[0] == "results"
    return subprocess.run(command, cwd=WORK, text=True, check=False, capture_output=captured)


def again(name: str, fate: str) -> str:
    """Return the fate of a survivor once the slow tests that reach it have run."""
    tests = next((tests for module, tests in SLOW.items() if name.startswith(module)), "")
    mutant = name.replace("__init__.", "")
    environment = os.environ | {"MUTANT_UNDER_TEST": mutant, "PYTHONPATH": "../src"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not docker", *shlex.split(tests)]
    try:
        done = subprocess.run(
            command,
            cwd=WORK / "mutants" / "tests",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    killed = done.returncode in (FAILED, INTERRUPTED)
    print(f"{name}: {'killed by' if killed else 'survived'} the slow tests", flush=True)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}", flush=True)
    return "killed" if killed else fate


def fates_of(patterns: Sequence[str]) -> dict[str, str]:
    """Return what mutmut found out about the mutants with such names, which it has made before."""
    lines = mutmut("results", "--all", "true").stdout.splitlines()
    pairs = ((name.strip(), fate.strip()) for name, _, fate in (x.partition(":") for x in lines))
    wanted = patterns or ["*"]
    return {n: f for n, f in pairs if f and any(fnmatch(n, pattern) for pattern in wanted)}


def sample(patterns: Sequence[str], size: int) -> list[str]:
    """Return the names of so many mutants, chosen at random."""
    names = sorted(fates_of(patterns), key=lambda name: name.replace("__init__.", ""))
    print(f"{min(size, len(names))} of {len(names)} mutants")
    return random.Random(SEED).sample(names, min(size, len(names)))


def interval(part: int, whole: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share that a random sample estimates."""
    z, share = 1.96, part / whole
    middle = share + z * z / (2 * whole)
    width = z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return (middle - width) / (1 + z * z / whole), (middle + width) / (1 + z * z / whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of mutants, which may contain *")
    parser.add_argument("--sample", type=int, help="run so many of them, chosen at random")
    arguments = parser.parse_args()
    names = arguments.names
    os.environ.setdefault("TERRINE_SHARED_DATA", str(REPOSITORY.parent / "shared" / "data"))
    copy([*names, FEW] if names and arguments.sample else names)
    if arguments.sample:
        if mutmut("run", FEW).returncode != 0:
            return 1
        names = sample(names, arguments.sample)
    if (done := mutmut("run", *names)).returncode != 0:
        return done.returncode
    fates = {name: fate for name, fate in fates_of(names).items() if fate != "not checked"}
    left = [name for name, fate in fates.items() if fate not in KILLED]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fates |= zip(left, pool.map(again, left, [fates[name] for name in left]), strict=True)
    counts = Counter(fates.values())
    killed = sum(number for fate, number in counts.items() if fate in KILLED)
    print("\nNot noticed by any test:")
    for name, fate in sorted(fates.items()):
        if fate not in KILLED:
            print(f"  {name}: {fate}")
    print(f"{killed} of {len(fates)} mutants killed, {killed / len(fates):.1%}: {dict(counts)}")
    if arguments.sample:
        low, high = interval(killed, len(fates))
        print(f"of all of them, with a confidence of 95 %: {low:.1%} to {high:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
