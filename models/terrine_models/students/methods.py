"""The ways to train a student, by name.

METHODS["mine"] = Mine           # a `StudentMethod`: `terrine student train --method mine`
"""

from __future__ import annotations

from terrine_models.students.kernel import Kernel
from terrine_models.students.neighbours import NearestNeighbours
from terrine_models.students.ridge import Ridge
from terrine_models.students.task import StudentMethod, Task

METHODS: dict[str, type[StudentMethod]] = {
    "ridge": Ridge,
    "kernel": Kernel,
    "neighbours": NearestNeighbours,
}
"""By name. `auto` compares the first with the last that suits a task."""


def methods() -> tuple[str, ...]:
    """Return what may be asked for."""
    return ("auto", *METHODS)


def check(method: str, task: Task) -> None:
    """Raise ValueError if there is no such method, or if it learns nothing from such inputs."""
    if method not in methods():
        raise ValueError(f"There is no method {method!r}, but {', '.join(methods())}.")
    if method != "auto" and not METHODS[method].can(task):
        kind = "rows of a table" if task.is_table else "images"
        raise ValueError(
            f"{method} is for {METHODS[method].wants}, and these inputs are {kind}. Use auto, "
            "which takes a method that suits them."
        )
