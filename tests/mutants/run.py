"""`make mutants`: alter the code that keeps the promise, one place at a time; does a test notice?

The mutation tester mutmut wants all sources under `src/`, so they are copied to `.mutants/` first.
What is altered, and which tests run, is under `[tool.mutmut]` in pyproject.toml. Arguments are
passed on to `mutmut run`: names of mutants such as `terrine_server.privacy.budget.*`. Survivors
are listed at the end; docs/mutants.md has those of the last run, each with its reason.
"""

from __future__ import annotations

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
KILLED = {"killed", "timeout", "caught by type check"}


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


def main() -> int:
    copy()
    done = mutmut("run", *sys.argv[1:])
    if done.returncode != 0:
        return done.returncode
    lines = mutmut("results", "--all", "true").stdout.splitlines()
    fates = {name.strip(): fate.strip() for name, _, fate in (x.partition(":") for x in lines)}
    fates = {name: fate for name, fate in fates.items() if fate and fate != "not checked"}
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
