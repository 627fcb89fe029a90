"""`make mutants`: alter the code that keeps the promise, one place at a time; does a test notice?

The mutation tester mutmut wants all sources under `src/`, so they are copied to `.mutants/` first.
What is altered, and which tests run, is under `[tool.mutmut]` in pyproject.toml. Arguments are
passed on to `mutmut run`: names of mutants such as `terrine_server.privacy.budget.*`. What survives
the quick tests, or makes them run out of time, then meets the slow ones that reach it (`SLOW`),
PostgreSQL's among them. Survivors are listed at the end; docs/mutants.md has those of the last run,
each with its reason.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / ".mutants"
PACKAGES = (
    "server/terrine_server",
    "client/terrine_client",
    "client/terrine_protocol",
    "models/terrine_models",
)
BESIDE = ("tests", "benchmarks", "docs", "pyproject.toml", "README.md", "Makefile")
KILLED = {"killed", "caught by type check"}
"""Not "timeout": a test that takes long on a busy machine has noticed nothing."""
FAILED, INTERRUPTED = 1, 2
"""Exit codes of pytest: a test failed; the tests could not even be imported."""
SLOW = {
    "terrine_server.ledger.charging": "ledger/test_keys.py ledger/test_charging.py "
    "ledger/test_groups.py ledger/test_publishing.py "
    "-k '(sqlite and test_publishing) or (postgresql and not test_publishing)'",
    "terrine_server.ledger": "ledger/test_edits.py ledger/test_between.py -k sqlite",
    "terrine_server.privacy.budget": "privacy/test_terms.py privacy/test_publishing_terms.py "
    "ledger/test_publishing.py -k 'not postgresql'",
    "terrine_server.privacy.published": "ledger/test_publishing.py "
    "privacy_data_dependent -k 'not postgresql'",
    "terrine_server.privacy": "ledger/test_publishing.py audit/test_books_audit.py "
    "-k 'not postgresql'",
    "terrine_server.labeling": "ledger/test_publishing.py api/test_queueing.py -k sqlite",
}
"""Tests for the survivors of a module; the first name that fits counts."""
LONGEST = 120


def copy() -> None:
    """Lay the sources out as mutmut wants them; results of an earlier run stay."""
    for name in PACKAGES:
        fresh(REPOSITORY / name, WORK / "src" / Path(name).name)
    fresh(REPOSITORY / "migrations", WORK / "src" / "terrine_server" / "migrations")
    for name in BESIDE:
        fresh(REPOSITORY / name, WORK / name)


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
    environment = os.environ | {"MUTANT_UNDER_TEST": name, "PYTHONPATH": "../src"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not docker", *shlex.split(tests)]
    try:
        done = subprocess.run(
            command,
            cwd=WORK / "mutants" / "tests",
            env=environment,
            capture_output=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    killed = done.returncode in (FAILED, INTERRUPTED)
    print(f"{name}: {'killed by' if killed else 'survived'} the slow tests", flush=True)
    return "killed" if killed else fate


def main() -> int:
    copy()
    done = mutmut("run", *sys.argv[1:])
    if done.returncode != 0:
        return done.returncode
    lines = mutmut("results", "--all", "true").stdout.splitlines()
    fates = {name.strip(): fate.strip() for name, _, fate in (x.partition(":") for x in lines)}
    fates = {name: fate for name, fate in fates.items() if fate and fate != "not checked"}
    for name in [name for name, fate in fates.items() if fate not in KILLED]:
        fates[name] = again(name, fates[name])
    counts = Counter(fates.values())
    killed = sum(number for fate, number in counts.items() if fate in KILLED)
    print("\nNot noticed by any test:")
    for name, fate in sorted(fates.items()):
        if fate not in KILLED:
            print(f"  {name}: {fate}")
    share = killed / max(1, len(fates))
    print(f"{killed} of {len(fates)} mutants killed, {share:.1%}: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
