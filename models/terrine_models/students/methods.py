"""The methods by which a student can be trained, by name."""

from __future__ import annotations

from terrine_models.students.models import Kernel, NearestNeighbours, Ridge, StudentMethod, Task
from terrine_models.students.trees import Trees

# By name. `auto` compares the first with the others that suit a task.
METHODS: dict[str, type[StudentMethod]] = {
    "ridge": Ridge,
    "kernel": Kernel,
    "neighbours": NearestNeighbours,
    "trees": Trees,
}


def method_names() -> tuple[str, ...]:
    """Return what may be asked for."""
    return ("auto", *METHODS)


def check_method(method: str, task: Task) -> None:
    """Raise ValueError for an unknown method, or one that cannot learn from such inputs."""
    if method not in method_names():
        raise ValueError(
            f"There is no method {method!r}; expected one of {', '.join(method_names())}."
        )
    if method != "auto" and not METHODS[method].can_learn(task):
        kind = "rows of a table" if task.is_table else "images"
        raise ValueError(
            f"{method} is for {METHODS[method].wants}, and these inputs are {kind}. Use auto, "
            "which takes a method that suits them."
        )
