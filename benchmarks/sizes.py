"""What each extra takes on disk, of what is installed here: `python benchmarks/sizes.py`.

Sizes are those of the files of a distribution and of all that it requires, in MiB. Before an
installation it is the same to a few percent: `du` adds what pip compiles.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution, metadata
from pathlib import Path

from packaging.requirements import Requirement


def brought(extra: str | None) -> set[str]:
    """The distributions that an installation with this extra has, as far as they are here."""
    found, todo = set[str](), [Requirement(f"terrine[{extra}]" if extra else "terrine")]
    seen = set[str]()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        try:
            needs = map(Requirement, distribution(name).requires or [])
        except PackageNotFoundError:
            continue
        found.add(name)
        environments = [{"extra": each} for each in requirement.extras] or [{"extra": ""}]
        todo += [
            each
            for each in needs
            if each.marker is None or any(map(each.marker.evaluate, environments))
        ]
    return found


def size(name: str) -> float:
    files = distribution(name).files or []
    paths = [Path(str(each.locate())) for each in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def main() -> None:
    print(f"{'extra':12}{'packages':>9}{'MiB':>7}   the largest")
    for extra in (None, *sorted(metadata("terrine").get_all("Provides-Extra") or [])):
        sizes = {name: size(name) for name in brought(extra)}
        largest = sorted(sizes.items(), key=lambda each: -each[1])[:4]
        names = ", ".join(f"{name} {each:.0f}" for name, each in largest)
        print(f"{extra or '-':12}{len(sizes):9}{sum(sizes.values()):7.0f}   {names}")


if __name__ == "__main__":
    main()
